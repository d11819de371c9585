"""ONNX Runtime on the CPU: regions become sessions, by ``torch.export`` and ``torch.onnx`` (paper, section 6.4).

The backend needs shapes: give ``example_inputs``. It needs the packages ``onnx``, ``onnxscript`` and ``onnxruntime``
(``pip install 'pytest-fx[onnx]'``), which are imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar

from fx.graph_module import GraphModule
from fx.lowering.backend import Backend, register_backend
from fx.lowering.converters import Converters
from fx.lowering.known_program import Operation
from fx.lowering.onnxruntime.operations import converters
from fx.lowering.onnxruntime.session import OnnxRuntimeRegion
from fx.lowering.openvino import OpenVINO
from fx.lowering.preparation import prepare_for_engine
from fx.node import Node

__all__ = ["OnnxRuntimeBackend", "OnnxRuntimeRegion"]

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_engines = OpenVINO()
"""The backend whose rules for values hold here too: engines return new memory, and take tensors and integers."""


class OnnxRuntimeBackend(Backend):
    """The backend ``onnxruntime``: float32 programs on the CPU."""

    __slots__ = ()

    name: ClassVar[str] = "onnxruntime"
    converters: ClassVar[Converters] = converters
    keeps_non_finite: ClassVar[bool] = False
    inlines_functions: ClassVar[bool] = True
    min_size: ClassVar[int] = 5  # as for OpenVINO, a call of a session takes as long as several small operations

    def why_unavailable(self) -> str | None:
        """Return which packages are missing; ``None`` if all are there."""
        missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
        return f"there is no package {' or '.join(missing)}: pip install 'pytest-fx[onnx]'" if missing else None

    def supports(self, operation: Operation) -> str | None:
        """Refuse a value whose memory is visible or written elsewhere, because sessions return new memory."""
        return _engines.supports(operation)

    def can_cross(self, node: Node) -> bool:
        """Return True for tensors and integer inputs; sizes and dtypes can be computed on both sides."""
        return _engines.can_cross(node)

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Record the values of integer inputs: a session is built for them, as it is for sizes."""
        _engines.study(program, example_inputs)

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Take attention apart, fold batch norms, and fold values computed from buffers."""
        return prepare_for_engine(graph_module)

    def build(self, region: GraphModule) -> OnnxRuntimeRegion:
        """Return a module with the session for the example inputs, which builds others for other inputs on demand."""
        return OnnxRuntimeRegion(region, "float32")


register_backend(OnnxRuntimeBackend())
