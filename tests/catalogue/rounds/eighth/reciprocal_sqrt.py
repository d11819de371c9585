"""A right pass of the eighth round."""

import torch

import fx

from ...rows import sound


@sound(8)
def reciprocal_sqrt(module: fx.GraphModule) -> fx.GraphModule:
    """Replace `1 / torch.sqrt(x)` and `torch.sqrt(x).reciprocal()` by `torch.rsqrt(x)`."""
    for pattern in (
        lambda x: 1 / torch.sqrt(x),
        lambda x: 1.0 / torch.sqrt(x),
        lambda x: torch.reciprocal(torch.sqrt(x)),
    ):
        fx.replace_pattern(module, pattern, lambda x: torch.rsqrt(x))
    return module
