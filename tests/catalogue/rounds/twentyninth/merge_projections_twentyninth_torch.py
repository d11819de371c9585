"""A wrong pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _linear(gm, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = gm.get_submodule(node.target)
    fits = type(module) is nn.Linear and not any(getattr(module, hooks, None) for hooks in _HOOKS)
    return module if fits else None


def _rows(gm, first):
    """The linear layers from this one on that follow one another and read the same input."""
    rows, node = [], first
    while _linear(gm, node) and node.args == first.args:
        mine, theirs = _linear(gm, node), _linear(gm, first)
        if (mine.bias is None) != (theirs.bias is None) or mine.weight.dtype != theirs.weight.dtype:
            break
        rows.append(node)
        node = node.next
    return rows


def _merge(gm, take):
    graph, done = gm.graph, set()
    for first in list(graph.nodes):
        rows = [] if first in done else _rows(gm, first)
        if len(rows) < 2:
            continue
        done.update(rows)
        sizes = [_linear(gm, row).weight.shape[0] for row in rows]
        with graph.inserting_before(first):
            weights = [graph.get_attr(f"{row.target}.weight") for row in rows]
            args = [first.args[0], graph.call_function(torch.cat, (weights,))]
            if _linear(gm, first).bias is not None:
                args.append(graph.call_function(torch.cat, ([graph.get_attr(f"{row.target}.bias") for row in rows],)))
            wide = graph.call_function(nn.functional.linear, tuple(args))
            parts = take(graph, wide, sizes)
        for row, part in zip(rows, parts):
            row.replace_all_uses_with(part)
            graph.erase_node(row)
    gm.recompile()
    return gm


def _views(graph, wide, sizes):
    split = graph.call_function(torch.split, (wide, sizes), {"dim": -1})
    return [graph.call_function(operator.getitem, (split, i)) for i in range(len(sizes))]


@fault(
    29,
    wrong="The parts are views of one wide result, not contiguous and sharing memory: view() and in-place operations fail.",
)
def merge_projections_twentyninth(gm: torch.fx.GraphModule):
    """Compute linear layers of one input in a row (query, key and value) by one product, its weight their weights' rows."""
    return _merge(gm, _views)
