"""A wrong pass of the twelfth round."""

import copy
import operator

import torch
from torch import nn

from ...rows import fault

MULS = (operator.mul, torch.mul, "mul")


DIVS = (operator.truediv, torch.div, "div")


CALLS = ("call_function", "call_method")


CONVS = {nn.Conv1d: 1, nn.Conv2d: 2}


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _run(gm, check_numerator):
    nodes, mods, bufs = list(gm.graph.nodes), dict(gm.named_modules(remove_duplicate=False)), dict(gm.named_buffers())
    for node in nodes:
        if node.op not in CALLS or node.target not in MULS + DIVS or len(node.args) != 2 or node.kwargs:
            continue
        conv = next((a for a in node.args if getattr(a, "op", "") == "call_module"), None)
        scale = next((a for a in node.args if getattr(a, "op", "") == "get_attr"), None)
        if conv is None or scale is None or scale.target not in bufs:
            continue
        layer = mods[conv.target]
        if type(layer) not in CONVS or _hooked(layer) or layer.training or len(conv.users) != 1:
            continue
        value = bufs[scale.target]
        if value.shape != (layer.out_channels,) + (1,) * CONVS[type(layer)] or value.dtype != layer.weight.dtype:
            continue
        if any(len(n.users) != 1 for n in nodes if n.op == "get_attr" and n.target == scale.target):
            continue
        divides = node.target in DIVS
        if check_numerator and divides and node.args[0] is not conv:
            continue
        factor = (1 / value if divides else value).flatten()
        if not torch.isfinite(factor).all():
            continue
        folded = copy.deepcopy(layer)
        with torch.no_grad():
            folded.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.dim() - 1)))
            if folded.bias is not None:
                folded.bias.mul_(factor)
        name = f"{conv.target}_scaled_{node.name}".replace(".", "_")
        gm.add_submodule(name, folded)
        conv.target = name
        node.replace_all_uses_with(conv)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(12, wrong="A buffer divided by the convolution's output is folded as if the output were divided by the buffer.")
def fold_scale_into_conv(module):
    """Fold the multiplication or division of a convolution's output by a per-channel buffer into its weights."""
    return _run(module, False)
