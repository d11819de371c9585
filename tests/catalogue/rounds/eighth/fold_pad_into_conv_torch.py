"""A wrong pass of the eighth round."""

import copy

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault


def _plain(layer, kind):
    return (
        type(layer) is kind
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], Node):
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.args) != 1 or len(before.users) != 1 or node.prev is not before:
            continue
        conv, pad = module.get_submodule(node.target), module.get_submodule(before.target)
        if not _plain(conv, nn.Conv2d) or not _plain(pad, nn.ZeroPad2d) or not isinstance(conv.padding, tuple):
            continue
        left, right, top, bottom = pad.padding
        if left != right or top != bottom or left < 0 or top < 0 or not accepts(conv):
            continue
        padded = copy.deepcopy(conv)
        padded.padding = (conv.padding[0] + top, conv.padding[1] + left)
        name = f"{node.name}_padded"
        while hasattr(module, name):
            name += "_"
        module.add_submodule(name, padded)
        node.target, node.args = name, before.args
        graph.erase_node(before)
    module.recompile()
    return module


@fault(8, wrong="The padding mode of the convolution is not asked: one that reflects does not pad by zeros.")
def fold_pad_into_conv(module: GraphModule) -> GraphModule:
    """Let the convolution pad by what an nn.ZeroPad2d in front of it pads on opposite sides."""
    return _rewrite(module, lambda conv: True)
