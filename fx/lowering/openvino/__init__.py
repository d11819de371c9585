"""OpenVINO on the CPU: regions become engines, by ``torch.export`` and OpenVINO's own importer (paper, section 6.4).

The backend needs shapes: give ``example_inputs``. It needs the package ``openvino``
(``pip install 'pytest-fx[openvino]'``), which is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.backend import Backend, register_backend
from fx.lowering.converters import Converters
from fx.lowering.known_program import Operation
from fx.lowering.openvino.module import OpenVINORegion
from fx.lowering.openvino.operations import converters
from fx.lowering.openvino.package import why_missing
from fx.lowering.preparation import prepare_for_engine
from fx.lowering.support import has_own_memory
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

__all__ = ["OpenVINO", "OpenVINORegion"]

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVINO(Backend):
    """The backend ``openvino``: float32 programs on the CPU.

    >>> OpenVINO("bfloat16").precision
    'bfloat16'
    """

    __slots__ = ("precision",)

    name: ClassVar[str] = "openvino"
    converters: ClassVar[Converters] = converters
    keeps_non_finite: ClassVar[bool] = False
    inlines_functions: ClassVar[bool] = True
    min_size: ClassVar[int] = 5  # a call of an engine takes as long as five small operations in eager Python

    @checked(LoweringError)
    def __init__(self, precision: Literal["float32", "bfloat16"] = "float32") -> None:
        """Make a backend.

        Args:
            precision: the dtype in which engines compute. With ``"bfloat16"``, they round values and weights to 8 bits
                of precision, which the contract ``close`` does not allow.

        Raises:
            LoweringError: there is no such precision.
        """
        self.precision = precision
        """The dtype in which engines compute."""

    def why_unavailable(self) -> str | None:
        """Return why the package cannot be used; ``None`` if it can."""
        return why_missing()

    def supports(self, operation: Operation) -> str | None:
        """Refuse a value whose memory is visible or written elsewhere, because engines return new memory."""
        # OpenVINO computes such a value once, and then may write the result of a later operation into its memory: for
        # `conv(buffer) + x`, each call added `x` to the result of the call before.
        if operation.subject.is_of_constants(operation.node):
            return "it is computed from tensors of the program alone"
        return has_own_memory(operation)

    def can_cross(self, node: Node) -> bool:
        """Return True for tensors and integer inputs; sizes and dtypes can be computed on both sides."""
        is_number = node.op == "placeholder" and type(node.meta.get("example_value")) is int
        return is_number or isinstance(node.meta.get("tensor_meta"), TensorMetadata)

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Record the values of integer inputs: an engine is built for them, as it is for sizes."""
        inputs = program.graph.find_nodes(op="placeholder")
        for node, value in zip(inputs, program.graph.process_inputs(*example_inputs), strict=False):
            if type(value) is int:
                node.meta["example_value"] = value

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Take attention apart, fold batch norms, and fold values computed from buffers."""
        return prepare_for_engine(graph_module)

    def build(self, region: GraphModule) -> OpenVINORegion:
        """Return a module with the engine for the example inputs, which builds engines for other inputs on demand."""
        return OpenVINORegion(region, _PRECISIONS[self.precision])


register_backend(OpenVINO())
