"""A wrong pass of the thirteenth round."""

import torch
import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import fault
from .shared import single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _state(gm: GraphModule, node, name: str):
    module = gm.get_submodule(node.target)
    return None if getattr(module, name) is None else gm.graph.get_attr(f"{node.target}.{name}")


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for conv_node in gm.graph.find_nodes(op="call_module"):
        pad_node = conv_node.prev
        if pad_node.op != "call_module" or not single(conv_node) or not single(pad_node):
            continue
        pad, conv = gm.get_submodule(pad_node.target), gm.get_submodule(conv_node.target)
        if conv_node.args[0] is not pad_node or len(pad_node.users) != 1:
            continue
        if not _plain(pad, nn.ZeroPad2d) or not _plain(conv, nn.Conv2d):
            continue
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str) or not torch.isfinite(conv.weight).all():
            continue
        left, right, top, bottom = pad.padding
        if left != right or top != bottom or min(left, top) < 0:
            continue
        extra = (top, left) if careful else (left, top)
        padding = tuple(a + b for a, b in zip(conv.padding, extra))
        with gm.graph.inserting_before(conv_node):
            args = (pad_node.args[0], _state(gm, conv_node, "weight"), _state(gm, conv_node, "bias"))
            new = gm.graph.call_function(F.conv2d, (*args, conv.stride, padding, conv.dilation, conv.groups))
        conv_node.replace_all_uses_with(new)
        gm.graph.erase_node(conv_node)
        gm.graph.erase_node(pad_node)
    return _finish(gm)


@fault(
    13,
    wrong="ZeroPad2d counts from the last dimension (left, right, top, bottom), the convolution's padding is (height, width): the two are swapped.",
)
def fold_zero_pad_into_conv(graph_module: GraphModule) -> GraphModule:
    """Folds nn.ZeroPad2d into the padding of the Conv2d that follows it."""
    return _rewrite(graph_module, careful=False)
