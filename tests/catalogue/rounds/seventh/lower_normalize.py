"""A wrong pass of the seventh round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault


def pattern_for(dim):
    return lambda x: F.normalize(x, dim=dim)


def plain_division(dim):
    return lambda x: x / torch.linalg.vector_norm(x, 2, dim, True)


@fault(
    7,
    wrong="normalize does not divide by less than eps: a vector of zeros stays zero, where the division makes NaN of it.",
)
def lower_normalize(module: fx.GraphModule) -> fx.GraphModule:
    """Write `F.normalize` along dimension 1 or the last as a division by the norm."""
    for dim in (1, -1):
        fx.replace_pattern(module, pattern_for(dim), plain_division(dim))
    return module
