"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import writes


def pattern(x):
    return x.max(dim=-1, keepdim=True)[0]


def replacement(x):
    return torch.amax(x, dim=-1, keepdim=True)


@fault(28, wrong="Forgets the gradient: max sends it to one of several equal maxima, amax spreads it over all of them.")
def max_to_amax_twentyeighth(gm: torch.fx.GraphModule):
    """Writes x.max(dim=-1, keepdim=True)[0] as amax, which needs no indices."""
    if writes(gm):
        return gm
    torch.fx.replace_pattern(gm, pattern, replacement)
    gm.recompile()
    return gm
