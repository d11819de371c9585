"""Engines for inference by their own front ends: ONNX Runtime by the exporter of torch, and OpenVINO's converter."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any, ClassVar

import torch
from torch import nn

from fx.capture.quiet_export import quiet_export
from pytest_fx.compilers.compiler import COMPUTES_ALONE, Compiler, example_result
from pytest_fx.runtimes import ConvertedProgram, loaded


@dataclass(frozen=True)
class OnnxRuntime(Compiler):
    """Export to ONNX by ``torch.onnx.export``, and run by ONNX Runtime on the CPU."""

    name: ClassVar[str] = "onnxruntime"
    may_change: ClassVar[tuple[str, ...]] = COMPUTES_ALONE
    not_promised: ClassVar[tuple[str, ...]] = ("aliasing", "state", "inputs untouched")
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    optimize: bool = True
    """Whether ONNX Runtime optimizes the graph."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Export the module, and load it into a session."""
        runtime: Any = importlib.import_module("onnxruntime")
        result, file = example_result(module, args, kwargs), BytesIO()
        with quiet_export(), redirect_stdout(StringIO()):
            exported: Any = torch.onnx.export(module, args, dynamo=True, verbose=False)
            exported.save(file)
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        if not self.optimize:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
        return _program(session, module, args, result)

    @property
    def recipe(self) -> str:
        """Lines that export and load ``model``."""
        return (
            "import io, onnxruntime\n"
            "from torch.utils._pytree import tree_leaves\n"
            "torch.onnx.export(model, args, dynamo=True).save(file := io.BytesIO())\n"
            "session = onnxruntime.InferenceSession(file.getvalue(), providers=['CPUExecutionProvider'])\n"
            "names = [each.name for each in session.get_inputs()]\n"
            "compiled = lambda *args: [torch.from_numpy(each) for each in\n"
            "                          session.run(None, {n: a.numpy() for n, a in zip(names, tree_leaves(args))})]"
        )

    def why_unavailable(self) -> str | None:
        """Return the package that is missing."""
        return _missing("onnxruntime", "onnx", "onnxscript")


@dataclass(frozen=True)
class OpenVinoFrontEnd(Compiler):
    """Convert by ``openvino.convert_model``, and run by OpenVINO on the CPU, with float32 as the least precision."""

    name: ClassVar[str] = "openvino-frontend"
    may_change: ClassVar[tuple[str, ...]] = COMPUTES_ALONE
    not_promised: ClassVar[tuple[str, ...]] = ("aliasing", "state", "inputs untouched")
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Convert the module for the example, and compile it."""
        openvino: Any = importlib.import_module("openvino")
        result = example_result(module, args, kwargs)
        with warnings.catch_warnings(), quiet_export(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            shapes = [list(arg.shape) for arg in args]
            converted = openvino.convert_model(module, example_input=args, input=shapes)
            return _program(converted, module, args, result)

    @property
    def recipe(self) -> str:
        """Lines that convert and compile ``model``."""
        return (
            "import openvino\n"
            "from torch.utils._pytree import tree_leaves\n"
            "converted = openvino.convert_model(model, example_input=args, input=[list(arg.shape) for arg in args])\n"
            "engine = openvino.compile_model(converted, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})\n"
            "compiled = lambda *args: [torch.from_numpy(each) for each in\n"
            "                          engine([a.numpy() for a in tree_leaves(args)]).values()]"
        )

    def why_unavailable(self) -> str | None:
        """Return the package that is missing."""
        return _missing("openvino")


def _program(converted: Any, module: nn.Module, args: tuple[Any, ...], result: Any) -> nn.Module:
    """Return the module that runs a converted model, with results in the structure of the module's own."""
    program = loaded(converted)
    assert isinstance(program, ConvertedProgram), "an engine runs in a session"
    program.arrange_like(module.forward, args, {}, result)
    return program


def _missing(*packages: str) -> str | None:
    """Return a command that installs the missing packages; None if there are none."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"pip install {' '.join(missing)}" if missing else None
