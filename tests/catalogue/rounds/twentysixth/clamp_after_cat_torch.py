"""A wrong pass of the twentysixth round."""

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import _hooked

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def _clamp(gm, node):
    """torch.clamp with numbers, of a layer's result that nothing else reads."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not torch.clamp:
        return False
    if len(node.users) != 1 or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    bounds = [*node.args[1:], *node.kwargs.values()]
    if not set(node.kwargs) <= {"min", "max"} or any(type(b) not in (int, float, type(None)) for b in bounds):
        return False
    source = node.args[0]
    if source.op != "call_module" or len(source.users) != 1:
        return False
    module = gm.get_submodule(source.target)
    return type(module) in LAYERS and not _hooked(module)


def _hoist(gm, same):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not torch.cat or not set(node.kwargs) <= {"dim"}:
            continue
        parts = node.args[0] if node.args else ()
        if not isinstance(parts, (list, tuple)) or len(parts) < 2:
            continue
        if not all(_clamp(gm, part) for part in parts) or len(set(parts)) != len(parts):
            continue
        if len({gm.get_submodule(part.args[0].target).weight.dtype for part in parts}) != 1:
            continue
        first = parts[0]
        if not all(same(first, part) for part in parts[1:]):
            continue
        node.args = ([part.args[0] for part in parts], *node.args[1:])
        with gm.graph.inserting_after(node):
            clamped = gm.graph.call_function(torch.clamp, (node, *first.args[1:]), dict(first.kwargs))
        node.replace_all_uses_with(clamped)
        clamped.args = (node, *first.args[1:])
        for part in parts:
            gm.graph.erase_node(part)
    gm.recompile()
    return gm


@fault(26, wrong="Compares the keyword arguments of the clamps only, not the bounds that are given by position.")
def clamp_after_cat(gm: torch.fx.GraphModule):
    """Clamp once behind a cat instead of each part before it."""
    return _hoist(gm, lambda a, b: a.kwargs == b.kwargs)
