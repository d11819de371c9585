"""The work of a program: the multiplications and additions of each operation, or that they cannot be counted."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from fx.higher_order import is_decided_by_values
from fx.node import Node
from fx.operators.facts import Family, Operator
from fx.operators.families import find_operator
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata

WORK = "float_operations"
"""The entry of a node's ``meta`` with its multiplications and additions; None if they cannot be counted."""
_MULTIPLIES: tuple[Family, ...] = ("linear", "convolution", "transposed convolution", "product", "combination")
"""Families whose work is counted; the work of other families in the table is small and counts as zero."""
_NOT_COUNTED = frozenset(
    "rnn lstm gru attention transformer linalg fft cholesky svd geqrf ormqr orgqr eig inverse solve cdist "
    "trilinear".split()
)
"""Words in the names of torch's operators that do much work and have no formula."""

_aten: Any = torch.ops.aten


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrence(input: Any, weight: Any, recurrent: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(input[:2]) * (math.prod(weight) + math.prod(recurrent))


def _with_vector(*shapes: Any, **kwargs: Any) -> int:
    return 2 * math.prod(shapes[-2])


_FORMULAS: dict[Any, Any] = {
    getattr(_aten, name): formula
    for name, formula in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention),
        ("mkldnn_rnn_layer", _recurrence),
        ("mv", _with_vector),
        ("addmv", _with_vector),
        ("dot", _with_vector),
    )
    if hasattr(_aten, name)
}
"""Formulas, from the shapes of arguments, for operators missing in ``torch.utils.flop_counter``."""


class WorkCounter(ShapeProp):
    """An interpreter that records the shape of every value and the work of each operation."""

    def run_node(self, n: Node) -> Any:
        """Run one node and record its shape and work."""
        if n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        if is_decided_by_values(n.target):  # its branches and loops depend on values
            n.meta[WORK] = None
            return super().run_node(n)
        counter, watch = FlopCounterMode(display=False, custom_mapping=_FORMULAS), _OperatorWatch()
        with counter, watch:
            result = super().run_node(n)
        is_computed = watch.has_computed or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
        is_known = not watch.has_other and (is_computed or n.op == "call_method" or _is_of_torch(n))
        n.meta[WORK] = counter.get_total_flops() if is_known else None
        return result


class _OperatorWatch(TorchDispatchMode):
    """A mode that watches which of torch's operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.has_other = False
        """True if there was work that cannot be counted."""
        self.has_computed = False
        """True if torch computed anything beside views."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        if packet not in flop_registry and packet not in _FORMULAS:
            name = packet.__name__
            self.has_other |= func.namespace not in ("aten", "prim", "prims")
            self.has_other |= not _NOT_COUNTED.isdisjoint(name.split("_")) and not name.startswith("linalg_vec")
        self.has_computed |= all(result.alias_info is None for result in func._schema.returns)
        return func(*args, **(kwargs or {}))


def _is_of_torch(node: Node) -> bool:
    """Return whether a node calls a function of torch, Python or this library, which all compute through torch."""
    target = node.target
    if node.op != "call_function":
        return False
    home = target if getattr(target, "__module__", None) else getattr(target, "__objclass__", None)  # of a method
    module = str(getattr(home, "__module__", ""))
    return module.partition(".")[0] in ("torch", "_operator", "builtins", "math", "fx") or _row_of(node) is not None


def _row_of(node: Node) -> Operator | None:
    return None if node.op == "call_module" else find_operator(node.target)


def work_of(node: Node) -> int | None:
    """Return the multiplications and additions of one operation, or None if they are not known.

    Those of elementwise functions, of normalization, pooling and the like count as zero.
    """
    if WORK in node.meta:
        return node.meta[WORK]
    if node.op not in ("call_function", "call_method", "call_module"):
        return 0
    row = _row_of(node)
    is_light = row is not None and row.family not in _MULTIPLIES
    return 0 if is_light or str(getattr(node.target, "__module__", "")).startswith("fx.") else None


def work_of_layer(node: Node, weight: Tensor) -> int | None:
    """Return the multiplications and additions of a linear layer or convolution, or None if shapes are not known."""
    if WORK in node.meta:
        return node.meta[WORK]
    metadata, source = node.meta.get("tensor_meta"), node.kwargs.get("input")
    row = _row_of(node)
    if row is not None and row.family == "transposed convolution":  # its window moves over the input
        metadata = source.meta.get("tensor_meta") if isinstance(source, Node) else None
    if not isinstance(metadata, TensorMetadata):
        return None
    return 2 * metadata.shape.numel() * (weight.numel() // max(1, len(weight)))
