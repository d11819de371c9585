"""Inductor reads rows of `x` that it has written in `x.add_(x.flip(0))` behind `x.index_put_`.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/198270
"""

import torch


def add(x):
    x.index_put_((torch.arange(len(x)),), x * 2)
    return x.add_(x.flip(0))


compiled = torch.compile(add, backend="inductor")
x = torch.arange(12.0).reshape(3, 4)
actual, expected = compiled(x.clone()), add(x.clone())
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
