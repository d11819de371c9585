"""A wrong pass of the twentyseventh round."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


@fx.wrap
def decomposed_norm(x, weight, bias, shape, eps, dims):
    if x.dtype not in (torch.float32, torch.float64):  # the real operator computes half precision in float32
        return F.layer_norm(x, shape, weight, bias, eps)
    centred = x - x.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    result = centred * torch.rsqrt(variance + eps)
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.contiguous()


def _decompose(gm, dims_of):
    modules = dict(gm.named_modules())
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        norm = modules[node.target]
        if type(norm) is not nn.LayerNorm or _hooked(norm):
            continue
        with gm.graph.inserting_before(node):
            weight, bias = (
                None if getattr(norm, name) is None else gm.graph.get_attr(f"{node.target}.{name}")
                for name in ("weight", "bias")
            )
            shape = tuple(norm.normalized_shape)
            args = (node.args[0], weight, bias, shape, norm.eps, dims_of(shape))
            opened = gm.graph.call_function(decomposed_norm, args)
            opened.meta["is_wrapped"] = True
        node.replace_all_uses_with(opened)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(27, wrong="It always reduces over the last dimension, also where normalized_shape has several.")
def decompose_layer_norm(gm):
    """Opens LayerNorm into mean, variance and scaling, for a target that has no such operator."""
    return _decompose(gm, lambda shape: (-1,))
