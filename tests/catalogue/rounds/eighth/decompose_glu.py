"""A wrong pass of the eighth round."""

import operator

import torch
from torch import nn

import fx

from ...rows import fault


def _rewrite(module, dim_of):
    graph = module.graph
    for node in list(graph.nodes):
        layer = None
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            if (
                type(layer) is not nn.GLU
                or layer._forward_hooks
                or layer._forward_pre_hooks
                or "forward" in vars(layer)
            ):
                continue
        elif node.op != "call_function" or node.target is not torch.nn.functional.glu:
            continue
        value = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(value, fx.Node):
            continue
        dim = dim_of(node, layer)
        with graph.inserting_before(node):
            halves = graph.call_function(torch.chunk, (value, 2), {"dim": dim})
            first = graph.call_function(operator.getitem, (halves, 0))
            second = graph.call_function(operator.getitem, (halves, 1))
            gate = graph.call_function(torch.sigmoid, (second,))
            product = graph.call_function(torch.mul, (first, gate))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    module.recompile()
    return module


def _of_call(node, layer):
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", -1)


@fault(
    8,
    wrong="The dimension is read from the call alone; nn.GLU(dim=1) keeps it in the module, and is divided along the last one.",
)
def decompose_glu(module: fx.GraphModule) -> fx.GraphModule:
    """Write gated linear units, functions and modules, as a product with a sigmoid."""
    return _rewrite(module, _of_call)
