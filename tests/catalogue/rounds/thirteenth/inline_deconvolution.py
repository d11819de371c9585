"""A wrong pass of the thirteenth round."""

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
    for node in gm.graph.find_nodes(op="call_module"):
        conv = gm.get_submodule(node.target)
        if not _plain(conv, nn.ConvTranspose2d) or not single(node) or conv.padding_mode != "zeros":
            continue
        if conv.dilation[0] != conv.dilation[1]:
            continue
        last = (conv.groups, conv.dilation[0]) if careful else (conv.dilation[0], conv.groups)
        with gm.graph.inserting_before(node):
            state = (_state(gm, node, "weight"), _state(gm, node, "bias"))
            args = (node.args[0], *state, conv.stride, conv.padding, conv.output_padding, *last)
            new = gm.graph.call_function(F.conv_transpose2d, args)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@fault(13, wrong="groups and dilation are passed in the order of F.conv2d, which is not that of F.conv_transpose2d.")
def inline_deconvolution(graph_module: GraphModule) -> GraphModule:
    """Opens nn.ConvTranspose2d into F.conv_transpose2d on its parameters."""
    return _rewrite(graph_module, careful=False)
