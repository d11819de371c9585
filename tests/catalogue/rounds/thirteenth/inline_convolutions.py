"""A right pass of the thirteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import sound
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


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        conv = gm.get_submodule(node.target)
        if not _plain(conv, nn.Conv2d) or not single(node) or conv.padding_mode != "zeros":
            continue
        with gm.graph.inserting_before(node):
            args = (node.args[0], _state(gm, node, "weight"), _state(gm, node, "bias"))
            new = gm.graph.call_function(F.conv2d, (*args, conv.stride, conv.padding, conv.dilation, conv.groups))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@sound(13)
def inline_convolutions(graph_module: GraphModule) -> GraphModule:
    """Opens nn.Conv2d into F.conv2d on its parameters."""
    return _rewrite(graph_module)
