"""ONNX Runtime as a backend: regions become sessions that equal PyTorch, and all valid inputs still work."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn

import fx
from fx.errors import LoweringError
from fx.lowering import Auto, Lower, OnnxRuntimeBackend
from fx.lowering.onnxruntime import OnnxRuntimeRegion
from model_zoo import get_model


@pytest.fixture
def runtime() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)


def lower(module: Any, *inputs: Any, min_size: int = 1, **options: Any) -> Any:
    return fx.lower(fx.symbolic_trace(module.eval()), OnnxRuntimeBackend(), inputs, min_size=min_size, **options)


def assert_same(lowered: Any, module: Any, *inputs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(2), nn.Linear(16, 4)
    ).eval()


class Recorder:
    """The calls of sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from fx.lowering.onnxruntime.session import OnnxRuntimeSession

        self.calls = 0
        run = OnnxRuntimeSession.__call__

        def counted(session: Any, inputs: Any) -> Any:
            self.calls += 1
            return run(session, inputs)

        monkeypatch.setattr(OnnxRuntimeSession, "__call__", counted)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.mark.usefixtures("runtime")
def test_a_model_becomes_one_session_that_takes_other_batches(recorder: Recorder) -> None:
    module = layers()
    lowered = lower(module, torch.randn(2, 3, 8, 8))
    assert lowered.meta["lowering"].node_share == 1
    assert [type(child) for child in lowered.children()] == [OnnxRuntimeRegion]
    for batch in (2, 5, 3):
        assert_same(lowered, module, torch.randn(batch, 3, 8, 8))
    assert recorder.calls == 3


@pytest.mark.usefixtures("runtime")
def test_results_have_the_layout_and_dtype_of_eager() -> None:
    module = Calling(lambda self, x: ((self.conv(x) > 0), self.conv(x), self.conv(x).permute(2, 0, 1, 3) * 2),
                     conv=nn.Conv2d(3, 4, 1))  # fmt: skip
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    lowered = lower(module, x)
    assert_same(lowered, module, x)
    with torch.no_grad():
        for actual, wanted in zip(lowered(x), module(x), strict=True):
            assert (actual.dtype, actual.stride()) == (wanted.dtype, wanted.stride())


@pytest.mark.usefixtures("runtime")
def test_a_written_weight_is_used(recorder: Recorder) -> None:
    module, x = layers(), torch.randn(2, 3, 8, 8)
    lowered = lower(module, x)
    with torch.no_grad():
        module.get_parameter("5.weight").mul_(2)
    assert_same(lowered, module, x)
    assert recorder.calls == 1


@pytest.mark.usefixtures("runtime")
def test_copies_and_pickles_compute_the_same(recorder: Recorder) -> None:
    module, x = layers(), torch.randn(2, 3, 8, 8)
    lowered = lower(module, x)
    assert_same(pickle.loads(pickle.dumps(copy.copy(lowered))), module, x)
    assert recorder.calls == 1


@pytest.mark.usefixtures("runtime")
def test_inputs_that_require_gradients_run_in_pytorch(recorder: Recorder) -> None:
    module, x = layers(), torch.randn(2, 3, 8, 8)
    lowered = lower(module, x)
    x.requires_grad_()
    lowered(x).sum().backward()
    assert x.grad is not None
    assert recorder.calls == 0


@pytest.mark.usefixtures("runtime")
def test_unsupported_operations_stay_in_python() -> None:
    module = Calling(lambda self, x: torch.cumprod(F.relu(self.layer(x)), 1), layer=nn.Linear(4, 4))
    x = torch.randn(3, 4)
    lowered = lower(module, x)
    assert "torch.cumprod(onnxruntime_0" in lowered.code
    assert_same(lowered, module, x)


@pytest.mark.usefixtures("runtime")
def test_the_fastest_backend_may_be_onnx_runtime() -> None:
    module, x = layers(), torch.randn(2, 3, 8, 8)
    lowered = fx.lower(fx.symbolic_trace(module), Auto(("onnxruntime",)), (x,), min_size=1)
    (trial,) = lowered.meta["backend_choice"].trials
    assert trial.speedup is not None
    assert_same(lowered, module, x)


@pytest.mark.usefixtures("runtime")
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet_tiny", "vit_small", "bert_small", "unet_small", "transformer_encoder_small"])
def test_models_are_one_session_each(name: str, recorder: Recorder) -> None:
    model = get_model(name)
    module, inputs = model.build().eval(), model.example_inputs(batch=2)
    lowered = lower(module, *inputs)
    assert lowered.meta["lowering"].node_share == 1
    assert sum(isinstance(each, OnnxRuntimeRegion) for each in lowered.modules()) == 1
    with torch.no_grad():
        torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)
    assert recorder.calls == 1


def test_a_dry_run_needs_no_package() -> None:
    coverage = fx.lower(
        fx.symbolic_trace(layers()), "onnxruntime", (torch.randn(2, 3, 8, 8),), dry_run=True, min_size=1
    )
    assert coverage.flop_share == 1


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("onnxscript", "onnxruntime") else find_spec(name)
    )
    why = Lower(backend="onnxruntime").why_unavailable()
    assert why is not None
    assert "onnxscript or onnxruntime: pip install 'pytest-fx[onnx]'" in why
    with pytest.raises(LoweringError, match="the backend 'onnxruntime' is not available here"):
        fx.lower(fx.symbolic_trace(layers()), "onnxruntime", (torch.randn(2, 3, 8, 8),))
