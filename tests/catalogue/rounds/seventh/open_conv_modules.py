"""A right pass of the seventh round."""

import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


@sound(7)
def open_conv_modules(module: fx.GraphModule) -> fx.GraphModule:
    """Replace calls of `Conv2d` modules that pad with zeros by `F.conv2d` on their own parameters."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) + len(node.kwargs) != 1:
            continue
        conv = module.get_submodule(node.target)
        if not plain(conv, nn.Conv2d) or conv.padding_mode != "zeros" or conv._parameters.get("weight") is None:
            continue
        if "bias" not in conv._parameters or not node.args and "input" not in node.kwargs:
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if conv.bias is None else graph.get_attr(f"{node.target}.bias")
            source = node.args[0] if node.args else node.kwargs["input"]
            geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
            opened = graph.call_function(F.conv2d, (source, weight, bias, *geometry))
        node.replace_all_uses_with(opened)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
