"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.PReLU)


STRIDES = ("view", "view_as", "stride", "is_contiguous", "as_strided")


def _sink(gm, applies):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer, moved = gm.get_submodule(node.target), node.args[0]
        if type(layer) not in ELEMENTWISE or getattr(layer, "inplace", False) or not applies(layer):
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            continue
        if not isinstance(moved, torch.fx.Node) or any(user.target in STRIDES for user in node.users):
            continue
        if moved.op != "call_method" or moved.target != "transpose" or len(moved.users) > 1 or len(moved.args) != 3:
            continue
        source, *dims = moved.args
        if moved.kwargs or not all(type(dim) is int for dim in dims):
            continue
        with gm.graph.inserting_before(node):
            active = gm.graph.call_module(node.target, (source,))
            result = gm.graph.call_method("transpose", (active, *dims))
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        gm.graph.erase_node(moved)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="nn.PReLU counts as elementwise, but with one slope for each channel it reads dimension 1, which is "
    "another one before the transpose than after it.",
)
def sink_transposes_thirtyfirst(gm: torch.fx.GraphModule):
    """Move transposes behind elementwise activations, towards others that cancel them."""
    return _sink(gm, lambda layer: True)
