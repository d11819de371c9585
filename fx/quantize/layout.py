"""The memory layout of a converted program's values: the order of elements, and reuse of memory."""

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
"""Activations computed in place, in the memory of a layer's float result: their gradients do not need it."""


def values_seen_in_memory(graph: Graph, quantized: Collection[Node]) -> set[Node]:
    """Return the values whose order of elements in memory affects more than time.

    Such a value

    - is returned;
    - is an argument of ``view``, or of a call about which too little is known;
    - or is an operand, element by element or window by window, of another such value.

    ``quantized`` are the values on integers. Nothing writes to them, so it does not matter which of them share memory.
    """
    exposed: set[Node] = set()
    for node in reversed(graph.nodes):
        for user in node.users:
            # Layers on integers take any layout. Their targets get names later.
            if user.target == UNNAMED or asks_for_size(user):
                continue
            row = find_operator(user.target)
            is_contiguous = row is not None and row.is_contiguous
            if user in quantized:
                shows = user.target is torch.Tensor.view or (user in exposed and not is_contiguous)
            else:
                shows = user in exposed or not _only_computes(user)
            if shows:
                exposed.add(node)
    return exposed


def _only_computes(user: Node) -> bool:
    """Return whether a call returns a new tensor that does not depend on the memory layout of its operands."""
    if user.target in (arithmetic.dequantize, arithmetic.lookup, arithmetic.rescale):
        return True
    if user.op != "call_function" or effect_of(user) is not None:
        return False
    sharing = find_sharing(user.target)
    if sharing.kind != "tensor" or sharing.places is None:
        return sharing.kind == "arithmetic"
    return not any(place < len(user.args) or name in user.kwargs for place, name in sharing.places)


def write_over_layers(graph: Graph) -> None:
    """Let activations write to the float results of layers that only they use, to save memory for a second result.

    For 128 megabytes an activation takes a third to a half of the time; for small results the time is the same.
    """
    for node in graph.nodes:
        if any(node.target is function for function in _IN_PLACE) and node.kwargs.get("inplace") is False:
            layer = node.kwargs["input"]
            if isinstance(layer, Node) and layer.target == UNNAMED and len(layer.users) == 1:
                node.kwargs = {**node.kwargs, "inplace": True}
