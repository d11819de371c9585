"""``TensorRT(emulate=True)``: PyTorch computes the networks, in place of engines on a GPU."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import Tensor, nn

import fx
from fx.errors import LoweringError
from fx.lowering import Converter, EmulatedEngine, Lower, TensorRT
from fx.lowering.tensorrt import library
from fx.lowering.tensorrt.library import find_library
from fx.lowering.tensorrt.predicates import converters
from fx.passes import parse_pipeline

pytestmark = pytest.mark.skipif(find_library() is None, reason="neither tensorrt nor tensorrt_rtx is installed")
EMULATED = TensorRT(emulate=True)


def block() -> nn.Module:
    """A convolution with a batch norm, attention, and activations with numbers of their own."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x)[0]
        return F.leaky_relu(self.fc(self.last(x)), 0.2) * 0.1

    torch.manual_seed(0)
    parts = {"conv": nn.Conv2d(3, 8, 3), "norm": nn.BatchNorm2d(8), "last": nn.LayerNorm(8), "fc": nn.Linear(8, 4)}
    return Calling(forward, **parts, attention=nn.MultiheadAttention(8, 2, batch_first=True)).eval()


IMAGES = torch.randn(2, 3, 8, 8)


@torch.no_grad()
def test_a_program_in_float64_keeps_the_papers_bound() -> None:
    module, images = block().double(), IMAGES.double()
    lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (images,))
    assert len(lowered.meta["lowering"].parts) == 1
    assert lowered.meta["lowering"].refused == ()
    torch.testing.assert_close(lowered(images), module(images), rtol=1e-5, atol=1e-8)


@torch.no_grad()
def test_a_slightly_wrong_converter_breaks_that_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Converter(F.leaky_relu, lambda network, input, negative_slope, inplace: network.add(
        "activation", input, library.library().ActivationType.LEAKY_RELU, alpha=negative_slope * 1.0001))  # fmt: skip
    right = converters.replace(wrong)
    assert right is not None
    try:
        module, images = block().double(), IMAGES.double()
        lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (images,))
    finally:
        converters.replace(right)
    assert not torch.allclose(lowered(images), module(images), rtol=1e-5, atol=1e-8)


def test_float64_beside_float32_stays_in_python() -> None:
    program = fx.symbolic_trace(lambda x: (torch.relu(x) * 2 + 1).double() * 3)
    coverage = fx.lower(program, EMULATED, (IMAGES,), dry_run=True)
    assert "is float64, which engines do not support" in str(coverage)


@torch.no_grad()
def test_an_emulated_program_is_copied_and_pickled_and_says_what_it_is() -> None:
    module = block()
    lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (IMAGES,))
    assert isinstance(lowered.tensorrt_0, EmulatedEngine)
    assert "emulated: PyTorch computes the " in str(lowered.meta["lowering"])
    for copied in (copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered))):
        torch.testing.assert_close(copied(IMAGES), module(IMAGES))


def test_weights_are_those_of_the_build() -> None:
    module = block()
    lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (IMAGES,))
    with torch.no_grad():
        before = lowered(IMAGES)
        module.fc.weight.zero_()
        assert torch.equal(lowered(IMAGES), before)


def test_it_refuses_the_inputs_that_an_engine_refuses() -> None:
    lowered = fx.lower(fx.symbolic_trace(block()), EMULATED, (IMAGES,))
    with pytest.raises(LoweringError, match=r"is of shape \(2, 3, 8, 8\), not \(4, 3, 8, 8\)"):
        lowered(torch.randn(4, 3, 8, 8))
    with pytest.raises(LoweringError, match="computes no gradients"):
        lowered(IMAGES.clone().requires_grad_())


@pytest.mark.skipif(not hasattr(find_library(), "ComputeCapability"), reason="tensorrt builds for the GPU here only")
def test_with_targets_the_engine_is_built_too() -> None:
    with pytest.raises(LoweringError, match="FP32 GEMM is not supported"):
        fx.lower(fx.symbolic_trace(block()), TensorRT(emulate=True, targets=("7.5",)), (IMAGES,))


def test_a_layer_of_an_unknown_type_is_named() -> None:
    def build(network: Any, input: Any) -> Any:
        return network.cast(network.add("non_zero", input), torch.float32)

    converters.register(Converter(torch.cumprod, lambda network, input, **_: build(network, input)))
    try:
        with pytest.raises(LoweringError, match="layers of the type NON_ZERO are not emulated"):
            fx.lower(fx.symbolic_trace(lambda x: torch.relu(torch.cumprod(x, 1))), EMULATED, (IMAGES,), min_size=1)
    finally:
        converters.remove(torch.cumprod)


def test_the_pass_takes_emulate_as_a_word() -> None:
    (emulated,) = parse_pipeline("lower{backend=tensorrt,emulate}")
    assert isinstance(emulated, Lower)
    assert emulated.label == "lower, emulated"
    assert emulated.why_unavailable() is None
    assert set(emulated.may_change) == {"gradients", "non-finite", "sizes"}
    data = [((IMAGES,), {})]
    lowered = emulated.with_data(data)(fx.symbolic_trace(block()))
    assert isinstance(lowered.tensorrt_0, EmulatedEngine)


def test_backends_without_emulation_say_so() -> None:
    (emulated,) = parse_pipeline("lower{backend=onednn,emulate}")
    with pytest.raises(LoweringError, match="the backend 'onednn' has no emulation"):
        emulated(fx.symbolic_trace(block()))  # type: ignore[operator]


# The package.

CLASSIC = SimpleNamespace(__name__="tensorrt", __version__="10.9.0")
OLD = SimpleNamespace(__name__="tensorrt", __version__="8.6.1")
RTX = SimpleNamespace(__name__="tensorrt_rtx", __version__="1.7.1", ComputeCapability=object)


@pytest.mark.parametrize(
    "packages, has_gpu, targets, chosen",
    [
        ((CLASSIC, RTX), False, (), RTX),
        ((CLASSIC, RTX), True, (), CLASSIC),
        ((CLASSIC, RTX), True, ("8.6",), RTX),
        ((CLASSIC, None), False, (), CLASSIC),
        ((CLASSIC, None), True, ("8.6",), CLASSIC),
        ((OLD, RTX), True, (), RTX),
        ((OLD, None), True, (), None),
    ],
)
def test_without_a_gpu_or_for_targets_the_package_that_builds_ahead_is_used(
    packages: tuple[Any, Any], has_gpu: bool, targets: Any, chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = dict(zip(("tensorrt", "tensorrt_rtx"), packages, strict=True))
    monkeypatch.setattr(library, "_imported", installed.get)
    monkeypatch.setattr(library, "_find", library._find.__wrapped__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with library.for_targets(targets):
        assert library.find_library() is chosen
    if chosen is None:
        assert TensorRT(targets=targets).why_unavailable() == (
            "tensorrt 8.6.1 is too old, TensorRT 10 is needed: pip install tensorrt_rtx"
        )
    else:
        assert TensorRT(targets=("8.6",)).why_unavailable() is None


@torch.no_grad()
def test_of_equal_elements_the_first_is_the_largest() -> None:
    def forward(x: Tensor) -> Tensor:
        return x.argmax(1, keepdim=True) + 10 * x.argmin(1, keepdim=True) + x.cumsum(1)

    ties = torch.tensor([[1.0, 1.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 1.0, 1.0]])
    lowered = fx.lower(fx.symbolic_trace(forward), EMULATED, (ties,), min_size=1)
    assert len(lowered.meta["lowering"].parts) == 1
    assert torch.equal(lowered(ties), forward(ties))


@torch.no_grad()
@pytest.mark.parametrize("hidden", [False, float("-inf")], ids=["a mask of truth values", "a mask of numbers"])
def test_a_query_that_sees_no_key_gets_what_eager_gives_it(hidden: float) -> None:
    inputs = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    mask = torch.ones(5, 5, dtype=torch.bool) if hidden is False else torch.zeros(5, 5)
    mask[2] = hidden

    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    lowered = fx.lower(fx.symbolic_trace(forward), EMULATED, (*inputs, mask), min_size=1)
    assert len(lowered.meta["lowering"].parts) == 1
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
    torch.testing.assert_close(lowered(*inputs, mask), expected, rtol=1e-5, atol=1e-6)
