"""A small model, and converted models of it that were written without an exporter."""

from __future__ import annotations

import torch
from torch import nn


class Head(nn.Module):
    """Two layers with a nested output, whose second input has other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, scale):
        hidden = torch.tanh(self.first(x))
        logits = self.second(hidden) * scale
        return {"logits": logits, "parts": (hidden, None)}


class RoughHead(Head):
    """The same with a rougher function in the middle."""

    def forward(self, x, scale):
        hidden = torch.nn.functional.hardtanh(self.first(x))
        logits = self.second(hidden) * scale
        return {"logits": logits, "parts": (hidden, None)}


def head(kind: type[Head] = Head) -> Head:
    torch.manual_seed(0)
    return kind().eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 6, generator=generator), torch.rand(5, 1, generator=generator)


def onnx_model(model: Head, operation: str = "Tanh", names: tuple[str, str] = ("x", "scale")):
    """Return the ONNX model of a head, with ``operation`` in the middle."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x, scale = names
    kind = TensorProto.FLOAT
    nodes = [
        helper.make_node("Gemm", [x, "w1", "b1"], ["linear"], transB=1),
        helper.make_node(operation, ["linear"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["linear_1"], transB=1),
        helper.make_node("Mul", ["linear_1", scale], ["logits"]),
    ]
    weights = {"w1": model.first.weight, "b1": model.first.bias, "w2": model.second.weight, "b2": model.second.bias}
    graph = helper.make_graph(
        nodes,
        "head",
        [helper.make_tensor_value_info(name, kind, ["n", size]) for name, size in ((x, 6), (scale, 1))],
        [helper.make_tensor_value_info(name, kind, ["n", size]) for name, size in (("logits", 3), ("hidden", 8))],
        [numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=onnx.IR_VERSION - 2)


def openvino_model(model: nn.Module):
    """Return the OpenVINO model of a head."""
    return imported(exported_model(model))


def exported_model(model: nn.Module) -> torch.export.ExportedProgram:
    """Return the exported program of a head, for any number of samples."""
    return torch.export.export(model, inputs(), dynamic_shapes=({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO}))


def imported(exported: torch.export.ExportedProgram):
    """Return an OpenVINO model by its own importer; ``openvino.convert_model`` also sends statistics of its use."""
    from fx.lowering.openvino.package import decoder, importer

    program = decoder().from_exported_program(exported.run_decompositions())  # must live until the conversion
    frontend = importer()
    converted = frontend.convert(frontend.load(program))
    converted.validate_nodes_and_infer_types()
    return converted
