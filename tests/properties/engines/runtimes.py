"""Programs of a model to compare: ours in engines of each runtime, and those of other compilers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from fx.capture.quiet_export import quiet_export
from fx.lowering import Backend, TensorRT, get_backend
from fx.lowering.openvino import package
from pytest_fx.tables.peers import ao_convert, ao_prepare

Compiler = Callable[[nn.Module, "tuple[Tensor, ...]"], "Callable[..., Any]"]

BACKENDS: Mapping[str, Backend] = {
    "tensorrt, emulated": TensorRT(emulate=True),
    **{name: get_backend(name) for name in ("openvino", "onnxruntime", "onednn")},
}
"""Our backends."""


def _compiled(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    return torch.compile(module)


def _in_8_bits(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    prepared = ao_prepare(copy.deepcopy(module), inputs, "x86")
    prepared(*inputs)
    return ao_convert(prepared, "x86")


def _in_onnx_runtime(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    file, runtime = BytesIO(), importlib.import_module("onnxruntime")
    with quiet_export():
        exported: Any = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
    exported.save(file)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda *tensors: [
        torch.from_numpy(value)
        for value in session.run(None, {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
    ]


def _in_openvino(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    with quiet_export():
        exported = torch.export.export(module, inputs).run_decompositions()
    reader, frontend = package.decoder()(exported.module(check_guards=False), dynamic_shapes=False), package.importer()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    network = package.core().compile_model(frontend.convert(frontend.load(reader)), "CPU", settings)

    def run(*tensors: Tensor) -> list[Tensor]:
        return list(map(torch.from_numpy, network([tensor.numpy() for tensor in tensors]).values()))

    return run


COMPILERS: Mapping[str, Compiler] = {
    "torch.compile": _compiled,
    "torch.ao, int8": _in_8_bits,
    "ONNX Runtime alone": _in_onnx_runtime,
    "OpenVINO alone": _in_openvino,
}
"""Other compilers, which get the model itself."""
