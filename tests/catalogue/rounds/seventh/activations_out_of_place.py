"""A right pass of the seventh round."""

import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


FRESH = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm2d, nn.AvgPool2d)


def function_of(layer):
    """The function of an in-place activation and its options, or None."""
    if plain(layer, nn.LeakyReLU):
        return F.leaky_relu, (layer.negative_slope,)
    for kind, function in ((nn.ReLU, F.relu), (nn.ReLU6, F.relu6), (nn.SiLU, F.silu), (nn.Hardswish, F.hardswish)):
        if plain(layer, kind):
            return function, ()
    return None


@sound(7)
def activations_out_of_place(module: fx.GraphModule) -> fx.GraphModule:
    """Replace in-place activation modules by functions that are not in place, where they alone read the fresh result of a layer (needed by exporters)."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        layer, below = module.get_submodule(node.target), node.args[0]
        replacement = function_of(layer)
        if replacement is None or layer.inplace is not True or below.op != "call_module" or len(below.users) != 1:
            continue
        if not plain(module.get_submodule(below.target), *FRESH):
            continue
        with graph.inserting_before(node):
            result = graph.call_function(replacement[0], (below, *replacement[1]))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
