"""Inductor resamples a dimension whose size `interpolate` keeps, and eager copies it.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/198201
"""

import torch
from torch.nn import functional as F


def resize(x):
    return F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest")


compiled = torch.compile(resize, backend="inductor")
x = torch.arange(12.0).reshape(1, 1, 3, 4)
actual, expected = compiled(x), resize(x)
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
