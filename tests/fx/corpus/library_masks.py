"""A library's functions between ``library_models`` and ``library_questions``."""

from __future__ import annotations

import torch

from .library_questions import at_least_one, count, is_mask, is_traced


def needed(mask):
    """The mask, or nothing where all count, which cannot be known while a program is captured."""
    if not is_traced(mask) and mask.all():
        return None
    return mask


def applied(x, mask):
    if is_mask(mask):
        return x.masked_fill(~mask, -1.0)
    return x + mask


def mean_of_rows(x):
    return x.sum(0) / count(x)


def shared(x):
    return x / at_least_one(x.shape[0] // 2)


def positions_of(x, offset):
    return torch.arange(x.shape[1], device=x.device) + offset
