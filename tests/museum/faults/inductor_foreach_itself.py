"""Inductor reads rows of `x` that it has written in `torch._foreach_add_([x], [x.flip(0)])`.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/198033
"""

import torch


def add(x):
    torch._foreach_add_([x], [x.flip(0)])
    return x


compiled = torch.compile(add, backend="inductor")
x = torch.arange(12.0).reshape(3, 4)
actual, expected = compiled(x.clone()), add(x.clone())
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
