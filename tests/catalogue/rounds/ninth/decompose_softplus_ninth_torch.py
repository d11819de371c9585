"""A wrong pass of the ninth round."""

import torch
import torch.nn.functional as F

from ...rows import fault


def _softplus(x):
    return F.softplus(x)


def _by_exponential(x):
    return torch.log1p(torch.exp(x))


@fault(9, wrong="The exponential overflows for large values, where softplus is its input.")
def decompose_softplus_ninth(module):
    """Write softplus with the default settings by operators that every runtime has: log(1 + exp(x))."""
    torch.fx.replace_pattern(module, _softplus, _by_exponential)
    return module
