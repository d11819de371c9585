"""A wrong pass of the twentysixth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _plain


def _bare(x):
    return x / x.norm(dim=-1, keepdim=True)


def _clamped(x):
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def _normalize(x):
    return F.normalize(x, dim=-1)


def _fuse(gm, patterns):
    if not _plain(gm):
        return gm
    for pattern in patterns:
        torch.fx.replace_pattern(gm, pattern, _normalize)
    gm.recompile()
    return gm


@fault(
    26, wrong="F.normalize keeps the norm above a small number: a row of zeros stays zero, where the division gave nan."
)
def fuse_normalize(gm: torch.fx.GraphModule):
    """Division by the norm of the last axis becomes F.normalize."""
    return _fuse(gm, (_clamped, _bare))
