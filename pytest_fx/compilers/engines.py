"""Engines for inference by their own front ends: ONNX Runtime by the exporter of torch, and OpenVINO's converter."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils import _pytree

from fx.capture.quiet_export import quiet_export
from pytest_fx.compilers.compiler import COMPUTES_ALONE, Compiler, result_structure

_pytree_: Any = _pytree


class EngineProgram:
    """A call of an engine on the tensors of a call, with the structure of the model's own result."""

    def __init__(self, run: Callable[[Sequence[Any]], Sequence[Any]], structure: Any) -> None:
        self.run, self.structure = run, structure

    def __call__(self, *args: Any) -> Any:
        """Return the engine's results as the model returns its own."""
        arrays = [leaf.detach().numpy() for leaf in _pytree_.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        results = [torch.from_numpy(array.copy()) for array in self.run(arrays)]
        return _pytree_.tree_unflatten(results, self.structure)


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
        structure, file = result_structure(module, args, kwargs), BytesIO()
        with quiet_export(), redirect_stdout(StringIO()):
            exported: Any = torch.onnx.export(module, args, dynamo=True, verbose=False)
            exported.save(file)
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        if not self.optimize:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return EngineProgram(lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))), structure)

    @property
    def recipe(self) -> str:
        """Lines that export and load ``model``."""
        return (
            "import onnxruntime\n"
            "torch.onnx.export(model, args, 'model.onnx', dynamo=True)\n"
            "session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])\n"
            "names = [each.name for each in session.get_inputs()]\n"
            "compiled = lambda *args: [torch.from_numpy(each) for each in\n"
            "                          session.run(None, {n: a.numpy() for n, a in zip(names, args)})]"
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
        structure = result_structure(module, args, kwargs)
        with warnings.catch_warnings(), quiet_export(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            shapes = [list(arg.shape) for arg in args]
            converted = openvino.convert_model(module, example_input=args, input=shapes)
            compiled = openvino.compile_model(
                converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
            )
        return EngineProgram(lambda arrays: list(compiled(arrays).values()), structure)

    @property
    def recipe(self) -> str:
        """Lines that convert and compile ``model``."""
        return (
            "import openvino\n"
            "converted = openvino.convert_model(model, example_input=args, input=[list(arg.shape) for arg in args])\n"
            "engine = openvino.compile_model(converted, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})\n"
            "compiled = lambda *args: [torch.from_numpy(each) for each in engine([a.numpy() for a in args]).values()]"
        )

    def why_unavailable(self) -> str | None:
        """Return the package that is missing."""
        return _missing("openvino")


def _missing(*packages: str) -> str | None:
    """Return a command that installs the missing packages; None if there are none."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"pip install {' '.join(missing)}" if missing else None
