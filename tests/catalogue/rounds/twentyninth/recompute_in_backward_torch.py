"""A wrong pass of the twentyninth round."""

import copy
import functools

import torch
import torch.fx
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from ...rows import fault
from .shared import _HOOKS


def _checkpoint(gm, kinds):
    if not gm.training:
        return gm
    done = set()
    for node in gm.graph.nodes:
        if node.op != "call_module" or node.target in done:
            continue
        module = gm.get_submodule(node.target)
        if type(module) not in kinds or "forward" in vars(module) or any(getattr(module, h, None) for h in _HOOKS):
            continue
        if getattr(module, "inplace", False):
            continue  # must not be run twice
        light = copy.copy(module)  # the same parameters and buffers
        plain = type(module).forward.__get__(light)
        light.forward = functools.partial(checkpoint, plain, use_reentrant=False)
        gm.add_submodule(node.target, light)
        done.add(node.target)
    gm.recompile()
    return gm


@fault(
    29, wrong="A batch norm that is computed again in the backward pass updates its running statistics twice a step."
)
def recompute_in_backward(gm: torch.fx.GraphModule):
    """Checkpoint layers that are cheap to compute again, to keep less memory for the backward pass."""
    return _checkpoint(gm, {nn.GELU, nn.SiLU, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d})
