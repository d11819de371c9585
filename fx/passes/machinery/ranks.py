"""The ranks of values (numbers of dimensions), as far as the program determines them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from fx.graph_module import GraphModule
from fx.node import Node
from fx.operators.families import find_operator


class Ranks:
    """The rank of each value where it is known.

    It is known from recorded shapes, and after ``flatten(1)`` and a ``view`` or ``reshape`` to a list of sizes. Layers,
    normalization, pooling, activations, dropout and other functions that keep the rank pass it on.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        self.known: dict[Node, int] = {}
        self._graph_module = graph_module

    def visit(self, node: Node) -> None:
        """Record the rank of ``node`` if it is known; call in the order of the graph."""
        rank = _recorded_rank(node)
        if rank is None:
            rank = _reshaped_rank(self._graph_module, node)
        if rank is None and _keeps_rank(self._graph_module, node):
            source = node.args[0] if node.args else node.kwargs.get("input")
            rank = self.known.get(source) if isinstance(source, Node) else None
        if rank is not None:
            self.known[node] = rank


def find_ranks(graph_module: GraphModule) -> dict[Node, int]:
    """Return the known ranks of all values of a program, see :class:`Ranks`."""
    ranks = Ranks(graph_module)
    for node in graph_module.graph.nodes:
        ranks.visit(node)
    return ranks.known


def insert_rank_check(folded: Node, into: Node, rank: int, pass_name: str) -> None:
    """Insert a check that the result of ``into`` has ``rank`` dimensions, as the folding of ``folded`` assumes."""
    graph = into.graph
    with graph.inserting_before(folded):
        dim = graph.call_method("dim", (into,))
        equal = graph.call_function(operator.eq, (dim, rank))
        message = f"{pass_name} folded {folded} into {into}, which holds only where {into} has {rank} dimensions"
        check = graph.call_function(torch._assert, (equal, message))
    for node in (dim, equal, check):
        node.source = folded.source


def _recorded_rank(node: Node) -> int | None:
    shape = getattr(node.meta.get("val", node.meta.get("tensor_meta")), "shape", None)
    return None if shape is None else len(shape)


def _reshaped_rank(graph_module: GraphModule, node: Node) -> int | None:
    """Return the rank of the result of an operation that sets it, or None."""
    if node.op == "call_method" and node.target in ("view", "reshape") and not node.kwargs:
        sizes: tuple[Any, ...] = node.args[1:]
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            return len(cast("Sequence[Any]", sizes[0]))
        return len(sizes) if len(sizes) > 1 else None  # a single one may be a dtype or a computed size
    if node.op == "call_module":
        module = graph_module.get_submodule(str(node.target))
        is_flat = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        return 2 if is_flat else None
    if node.target is torch.flatten or (node.op == "call_method" and node.target == "flatten"):
        arguments = {**dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)), **node.kwargs}
        return 2 if (arguments.get("start_dim"), arguments.get("end_dim", -1)) == (1, -1) else None
    return None


def _keeps_rank(graph_module: GraphModule, node: Node) -> bool:
    if node.op not in ("call_module", "call_function", "call_method"):
        return False
    is_module = node.op == "call_module"
    row = find_operator(type(graph_module.get_submodule(str(node.target))) if is_module else node.target)
    return row is not None and row.keeps_the("rank")
