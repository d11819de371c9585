"""A wrong pass of the seventeenth round."""

import torch
from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import has_hooks, may_write

ELEMENTWISE = (nn.ReLU, nn.GLU)


def _parts(graph_module: GraphModule, node):
    """The layers' results that a concatenation joins, if all of them have one type."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not torch.cat or len(node.users) > 1:
        return None
    parts = node.args[0] if node.args else None
    if not isinstance(parts, (tuple, list)) or not parts or "out" in node.kwargs:
        return None
    if not all(isinstance(part, Node) and part.op == "call_module" for part in parts):
        return None
    layers = [graph_module.get_submodule(part.target) for part in parts]
    if not all(type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d) for layer in layers):
        return None
    return parts if len({layer.weight.dtype for layer in layers}) == 1 else None


def _move(graph_module: GraphModule, careful: bool) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = graph_module.get_submodule(node.target)
        if type(module) not in (ELEMENTWISE[:1] if careful else ELEMENTWISE) or has_hooks(module):
            continue
        joined = node.args[0]
        parts = _parts(graph_module, joined)
        if not parts:
            continue
        with graph_module.graph.inserting_before(node):
            activated = [graph_module.graph.call_module(node.target, (part,)) for part in parts]
            moved = graph_module.graph.call_function(torch.cat, (activated, *joined.args[1:]), dict(joined.kwargs))
        node.replace_all_uses_with(moved)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(joined)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="GLU is in the list of elementwise activations; it multiplies one half of the channels by the other.")
def activate_before_cat(graph_module: GraphModule) -> GraphModule:
    """Move an activation from behind a concatenation to the layers in front of it, which can fuse with it."""
    return _move(graph_module, careful=False)
