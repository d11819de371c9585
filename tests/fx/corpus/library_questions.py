"""What a library's functions ask of what they are given; the programs of ``library_models`` do not import this."""

from __future__ import annotations

import torch
import torch.fx


def is_traced(x):
    return isinstance(x, torch.fx.Proxy)


def is_mask(x):
    return isinstance(x, torch.Tensor)


def count(x):
    return len(x)


def at_least_one(size):
    return max(size, 1)
