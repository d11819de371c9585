"""How the values of a converted program lie in memory: which share some, and where it shows in what order they do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F

from fx.graph import Graph
from fx.node import Node
from fx.operators.effects import effect_of
from fx.operators.families import find_operator
from fx.operators.sharing import find_sharing
from fx.quantize import arithmetic
from fx.quantize.integer_operations import asks_for_size
from fx.quantize.weights import UNNAMED

_IN_PLACE: tuple[Any, ...] = (F.relu, F.elu, F.selu)
"""Activations that are computed in the memory of a layer's float result, which gradients can do without."""


def values_seen_in_memory(graph: Graph, quantized: Collection[Node]) -> set[Node]:
    """The values for which it makes a difference in what order their elements lie in memory, beside one in time.

    They are returned, or go to ``view`` or to what is not known well enough; or they are computed from, element by
    element or window by window, and what comes of it is such a value. ``quantized`` are the values of integers, which
    nothing writes to, so that it makes no difference which of them share memory.
    """
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        for user in node.users:
            # Layers on integers, which get their names later, take any layout.
            if user.target == UNNAMED or asks_for_size(user):
                continue
            row = find_operator(user.target)
            is_contiguous = row is not None and row.is_contiguous
            if user in quantized:
                shows = user.target is torch.Tensor.view or (user in seen and not is_contiguous)
            else:
                shows = user in seen or not _only_computes(user)
            if shows:
                seen.add(node)
    return seen


def _only_computes(user: Node) -> bool:
    """Return whether the result of a call is new, and the same for operands that lie otherwise."""
    if user.target in (arithmetic.dequantize, arithmetic.lookup, arithmetic.rescale):
        return True
    if user.op != "call_function" or effect_of(user) is not None:
        return False
    sharing = find_sharing(user.target)
    if sharing.kind != "tensor" or sharing.places is None:
        return sharing.kind == "arithmetic"
    return not any(place < len(user.args) or name in user.kwargs for place, name in sharing.places)


def write_over_layers(graph: Graph) -> None:
    """Let activations write to the float results of layers that only they use: a large one is not made twice.

    Of 128 megabytes it takes a third to a half of the time; small ones take as long.
    """
    for node in graph.nodes:
        if any(node.target is function for function in _IN_PLACE) and node.kwargs.get("inplace") is False:
            layer = node.kwargs["input"]
            if isinstance(layer, Node) and layer.target == UNNAMED and len(layer.users) == 1:
                node.kwargs = {**node.kwargs, "inplace": True}
