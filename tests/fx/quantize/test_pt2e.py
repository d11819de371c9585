"""Quantized programs that leave as integers: operators of PT2E, ONNX, engines of other runtimes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from selection import thorough_except
from torch import Tensor, nn

import fx
import model_zoo
from fx.quantize import Choice, QuantizationScheme, convert, prepare, pt2e, reference

OPERATORS = torch.ops.quantized_decomposed


def convnet() -> tuple[nn.Module, Tensor]:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
    )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)), torch.randn(4, 3, 8, 8)


def decoder() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2), nn.ReLU6(), nn.Conv2d(6, 2, 1)), torch.randn(2, 4, 5, 5)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.second(torch.relu(self.first(x)) + x)) * x


def residual() -> tuple[nn.Module, Tensor]:
    return Residual(), torch.randn(5, 6)


def prepared(make: Any, scheme: QuantizationScheme | None = None) -> Any:
    torch.manual_seed(0)
    model, *inputs = make()
    program = prepare(fx.symbolic_trace(model.eval()), scheme or QuantizationScheme(), example_inputs=tuple(inputs))
    with torch.no_grad():
        program(*inputs)
    return program, *inputs, model


def ratio_in_decibels(signal: Tensor, quantized: Tensor) -> float:
    return 20 * torch.log10(signal.norm() / (signal - quantized).norm()).item()


def run_by_onnxruntime(path: Path, *inputs: Tensor) -> Tensor:
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    return torch.from_numpy(session.run(None, dict(zip(names, map(Tensor.numpy, inputs), strict=True)))[0])


def run_by_openvino(path: Path, *inputs: Tensor) -> Tensor:
    model = pytest.importorskip("openvino").Core().compile_model(path, "CPU")
    return torch.from_numpy(model([each.numpy() for each in inputs])[0])


@pytest.mark.parametrize("make", [convnet, decoder, residual])
def test_the_operators_of_pt2e_compute_what_the_reference_form_does(make: Any) -> None:
    program, x, _ = prepared(make)
    written = pt2e(program)
    targets = {node.target for node in written.graph.nodes}
    assert OPERATORS.quantize_per_tensor.default in targets and OPERATORS.dequantize_per_channel.default in targets
    assert not any(getattr(target, "__module__", "").startswith("fx.") for target in targets)
    torch.testing.assert_close(written(x), reference(program)(x))
    assert {value.dtype for name, value in written.state_dict().items() if name.endswith("weight")} == {torch.int8}
    assert copy.deepcopy(written)(x).equal(written(x))


def test_values_beyond_a_narrower_range_saturate_as_in_the_reference_form() -> None:
    program, x, _ = prepared(convnet, QuantizationScheme(Choice(activation_bits=7)))
    written = pt2e(program)
    torch.testing.assert_close(written(x * 3), reference(program)(x * 3))


@pytest.mark.parametrize("bits", [8, 5])
@pytest.mark.parametrize("make", [convnet, residual])
def test_dynamic_layers_choose_their_scale_in_the_exported_program(make: Any, bits: int) -> None:
    program, x, _ = prepared(make, QuantizationScheme(Choice(precision="dynamic", activation_bits=bits)))
    written = pt2e(program)
    targets = {node.target for node in written.graph.nodes}
    assert {OPERATORS.choose_qparams.tensor, OPERATORS.quantize_per_tensor.tensor} <= targets
    exported = torch.export.export(written, (x,)).module()
    for inputs in (x, x * 9, x.abs() + 1):
        torch.testing.assert_close(exported(inputs), reference(program)(inputs))


@pytest.mark.parametrize("make", thorough_except([convnet], [convnet, decoder, residual]))
def test_a_file_of_onnx_has_integer_weights_and_the_noise_of_our_kernels(make: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    program, x, model = prepared(make)
    path = tmp_path / "quantized.onnx"
    exported = torch.export.export(pt2e(program), (x,))
    torch.onnx.export(exported, dynamo=True, verbose=False).save(path)
    graph = onnx.load(path).graph
    kinds = {node.op_type for node in graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    integers = [each for each in graph.initializer if each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1]
    assert len(integers) == sum(
        hasattr(module, "weight") for module in model.modules() if not isinstance(module, nn.BatchNorm2d)
    )
    with torch.no_grad():
        ours = ratio_in_decibels(model(x), convert(program)(x))
        assert ratio_in_decibels(model(x), run_by_onnxruntime(path, x)) > ours - 1
        assert ratio_in_decibels(model(x), run_by_openvino(path, x)) > ours - 5  # it has its own rounding


@pytest.mark.thorough
@pytest.mark.parametrize("name", "resnet_tiny vit_small mlp gpt2_small lstm_classifier_small".split())
def test_models_of_the_zoo_run_in_onnx_runtime_with_our_noise(name: str, tmp_path: Path) -> None:
    model = model_zoo.get_model(name)
    program, *inputs, module = prepared(lambda: (model.build(), *model.example_inputs()))
    path = tmp_path / "quantized.onnx"
    torch.onnx.export(torch.export.export(pt2e(program), tuple(inputs)), dynamo=True, verbose=False).save(path)
    with torch.no_grad():
        signal, ours = module(*inputs), convert(program)(*inputs)
    assert ratio_in_decibels(signal, run_by_onnxruntime(path, *inputs)) > ratio_in_decibels(signal, ours) - 1
