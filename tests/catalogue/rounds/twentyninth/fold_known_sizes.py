"""A wrong pass of the twentyninth round."""

import operator

import torch.nn as nn

import fx
from fx.node import map_arg

from ...rows import fault
from .shared import _HOOKS


def _asked(node):
    """(tensor, dimension) of a node that asks for one size, or None."""
    if node.op == "call_method" and node.target == "size" and len(node.args) == 2 and not node.kwargs:
        return node.args
    if node.op == "call_function" and node.target is operator.getitem:
        shape, index = node.args
        if getattr(shape, "op", None) == "call_function" and shape.target is getattr and shape.args[1:] == ("shape",):
            return shape.args[0], index
    return None


def _known(gm, node, conv_dims):
    layer_and_dim = _asked(node)
    if layer_and_dim is None or type(layer_and_dim[1]) is not int or not isinstance(layer_and_dim[0], fx.Node):
        return None
    layer, dim = layer_and_dim
    if layer.op != "call_module":
        return None
    module = gm.get_submodule(layer.target)
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return None
    if type(module) is nn.Linear and dim == -1 or type(module) is nn.Conv2d and dim in conv_dims:
        return module.weight.shape[0]
    return None


def _fold(gm, conv_dims):
    if any(n.op == "call_method" and n.target.endswith("_") for n in gm.graph.nodes):
        return gm  # y.t_() and the like change sizes
    for node in list(gm.graph.nodes):
        size = _known(gm, node, conv_dims)
        if size is None:
            continue
        for user in list(node.users):
            user.args = map_arg(user.args, lambda used: size if used is node else used)
            user.kwargs = map_arg(user.kwargs, lambda used: size if used is node else used)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="Takes dimension 1 of a convolution's output for the channels; of an image without batch, (C, H, W), it is the height.",
)
def fold_known_sizes(gm):
    """Replace sizes that the layers' weights tell (channels, features) by numbers, for a compiler of static shapes."""
    return _fold(gm, (1, -3))
