"""What each operation costs for example inputs: shapes and floating-point operations, without computing anything."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from fx.graph_module import GraphModule
from fx.node import Node
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata


def count_flops(graph_module: GraphModule, example_inputs: Sequence[Any]) -> tuple[dict[Node, int], Exception | None]:
    """Record the shape of every value in ``meta``, and count the floating-point operations of each operation.

    Nothing is computed and no state changes: the program runs on tensors without elements. Counted are products and
    convolutions, two operations a multiplication with addition, as by ``torch.utils.flop_counter``.

    Returns:
        The counts, and what was raised where the program could not be followed further: inputs do not fit, or its
        course depends on elements. Or what it should perhaps have raised: tensors without elements may be multiplied
        whatever their dtypes.
    """
    counting = _Counting(graph_module)
    try:
        counting.propagate(*example_inputs)
    except Exception as error:
        return counting.flops, error
    return counting.flops, counting.doubt


class _Counting(ShapeProp):
    """Shape propagation that counts."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, fake=True)
        self.flops: dict[Node, int] = {}
        self.doubt: Exception | None = None
        """About the first product of different dtypes, which may be wrong."""

    def run_node(self, n: Node) -> Any:
        """Run one node and count its work."""
        if n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        counter = FlopCounterMode(display=False)
        with counter:
            result = super().run_node(n)
        self.flops[n] = counter.get_total_flops()
        if self.flops[n] and self.doubt is None and len(dtypes := self._dtypes(n)) > 1:
            self.doubt = TypeError(f"`%{n}` multiplies {' by '.join(sorted(map(str, dtypes)))}")
        return result

    def _dtypes(self, node: Node) -> set[torch.dtype]:
        """The dtypes of the numbers that an operation works on; booleans are masks."""
        values = pytree.tree_leaves(self.fetch_args_kwargs_from_env(node))
        if node.op == "call_module":
            values += self.submodules[str(node.target)].parameters()
        return {value.dtype for value in values if isinstance(value, torch.Tensor)} - {torch.bool}


def size_of(node: Node) -> int | None:
    """The bytes of the tensors in a recorded value, or ``None`` if none is recorded."""
    recorded: Any = node.meta.get("tensor_meta") if node._meta else None
    if recorded is None:
        return None
    tensors = pytree.tree_leaves(recorded, is_leaf=lambda value: isinstance(value, TensorMetadata))
    return sum(_bytes(one.shape, one.dtype) for one in tensors if isinstance(one, TensorMetadata))


def _bytes(shape: Sequence[Any], dtype: torch.dtype) -> int:
    return int(prod(shape)) * dtype.itemsize
