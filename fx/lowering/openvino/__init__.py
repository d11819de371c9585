"""OpenVINO on the CPU: regions become engines, through ``torch.export`` to its own importer (paper, section 6.4).

The backend needs the package ``openvino`` (``pip install 'pytest-fx[openvino]'``), which is imported when it is first
used, and shapes: give ``example_inputs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fx.arguments import shown
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.backend import Backend, register_backend
from fx.lowering.converters import Converters
from fx.lowering.known_program import Operation
from fx.lowering.openvino.module import OpenVINORegion
from fx.lowering.openvino.operations import converters
from fx.lowering.openvino.package import why_missing
from fx.lowering.support import has_own_memory
from fx.node import Node
from fx.passes.fold_constants import FoldConstants
from fx.passes.fuse_conv_bn import FuseConvBN
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
    min_size: ClassVar[int] = (
        5  # a call of an engine takes as long as so many calls of small operations in eager Python
    )

    def __init__(self, precision: Literal["float32", "bfloat16"] = "float32") -> None:
        """A backend.

        Args:
            precision: what engines compute in. With ``"bfloat16"`` values and weights are rounded to 8 bits of
                precision inside of them, which the contract ``close`` does not allow.

        Raises:
            LoweringError: there is no such precision.
        """
        if not isinstance(precision, str) or precision not in _PRECISIONS:
            raise LoweringError("the precision of OpenVINO is 'float32' or 'bfloat16'", value=shown(precision))
        self.precision = precision
        """What engines compute in."""

    def why_unavailable(self) -> str | None:
        """Return why the package cannot be imported, if it cannot."""
        return why_missing()

    def supports(self, operation: Operation) -> str | None:
        """Engines return memory of their own, so they take nothing whose memory is seen or written elsewhere."""
        # OpenVINO computes such a value once, and then may write the result of an operation behind it into its memory:
        # of `conv(buffer) + x`, each call added `x` to what the call before had returned.
        if operation.subject.is_of_constants(operation.node):
            return "it is computed of tensors of the program alone"
        return has_own_memory(operation)

    def can_cross(self, node: Node) -> bool:
        """Return True for tensors, and integers that the program is given; both sides know sizes and dtypes."""
        is_number = node.op == "placeholder" and type(node.meta.get("example_value")) is int
        return is_number or isinstance(node.meta.get("tensor_meta"), TensorMetadata)

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Note the integers that the program is given: an engine is built for them, as it is for sizes."""
        inputs = program.graph.find_nodes(op="placeholder")
        for node, value in zip(inputs, program.graph.process_inputs(*example_inputs), strict=False):
            if type(value) is int:
                node.meta["example_value"] = value

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Fold what is computed of buffers alone, which an engine holds as they are, and batch norms."""
        return FuseConvBN()(FoldConstants()(graph_module))

    def build(self, region: GraphModule) -> OpenVINORegion:
        """The engine for the example inputs, and whatever else it takes to run the region on others."""
        return OpenVINORegion(region, _PRECISIONS[self.precision])


register_backend(OpenVINO())
