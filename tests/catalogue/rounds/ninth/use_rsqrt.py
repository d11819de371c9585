"""A right pass of the ninth round."""

import torch

import fx

from ...rows import sound


def _reciprocal(x):
    return torch.reciprocal(torch.sqrt(x))


def _one_over(x):
    return 1.0 / torch.sqrt(x)


def _rsqrt(x):
    return torch.rsqrt(x)


@sound(9)
def use_rsqrt(module: fx.GraphModule) -> fx.GraphModule:
    """Use the one operation for the reciprocal of a square root."""
    for pattern in (_reciprocal, _one_over):
        fx.replace_pattern(module, pattern, _rsqrt)
    return module
