"""A wrong pass of the twelfth round."""

import operator

import torch
from torch import nn

from ...rows import fault

LAYERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def _measured(node):
    """The tensor whose first size this is, or None."""
    if not isinstance(node, torch.fx.Node):
        return None
    if node.op == "call_method" and node.target == "size" and node.args[1:] == (0,):
        return node.args[0]
    if node.target is operator.getitem and node.args[1] == 0:
        shape = node.args[0]
        if isinstance(shape, torch.fx.Node) and shape.target is getattr and shape.args[1] == "shape":
            return shape.args[0]
    return None


def _run(gm, same):
    graph, mods = gm.graph, dict(gm.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in ("view", "reshape") or len(node.args) != 3 or node.kwargs:
            continue
        x, first, rest = node.args
        measured = _measured(first)
        if rest != -1 or measured is None or x.op != "call_module" or type(mods[x.target]) not in LAYERS:
            continue
        layer = mods[x.target]
        if layer._forward_hooks or getattr(layer, "return_indices", False):
            continue
        if any(user.op == "call_method" and user.target.endswith("_") for user in x.users):
            continue
        if same and measured is not x:
            continue
        with graph.inserting_before(node):
            flat = graph.call_function(torch.flatten, (x, 1))
        node.replace_all_uses_with(flat)
        graph.erase_node(node)
        if not first.users:
            graph.erase_node(first)
    gm.recompile()
    return gm


@fault(12, wrong="That the first size is read from the very tensor that is viewed is not asked.")
def view_to_flatten_twelfth(module):
    """Write ``x.view(x.size(0), -1)`` of feature maps as flatten, which needs no sizes."""
    return _run(module, False)
