"""Inductor drops the copy in `x[1:] = x[:-1].clone()`, and reads rows that it has written.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197829
"""

import torch


def shift(x):
    x[1:] = x[:-1].clone()
    return x


compiled = torch.compile(shift, backend="inductor")
x = torch.arange(64.0).reshape(4, 16)
actual, expected = compiled(x.clone()), shift(x.clone())
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
