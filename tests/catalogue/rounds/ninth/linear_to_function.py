"""A right pass of the ninth round."""

import torch.nn.functional as F
from torch import nn

from ...rows import sound


def _is_plain(layer):
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return (
        type(layer) is nn.Linear
        and not any(hooks)
        and "forward" not in layer.__dict__
        and "weight" in layer._parameters
        and "bias" in layer._parameters
    )


@sound(9)
def linear_to_function(module):
    """Call F.linear with the parameters instead of the layer, so that later passes see the weights."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = module.get_submodule(node.target)
        if not _is_plain(layer):
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if layer.bias is None else graph.get_attr(f"{node.target}.bias")
            new = graph.call_function(F.linear, (node.args[0], weight, bias))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
