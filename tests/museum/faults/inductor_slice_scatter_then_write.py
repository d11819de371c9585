"""Inductor computes `slice_scatter(x, …)` in the memory of `x`, which the program writes to later.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/198094
"""

import torch


def scatter(x):
    result = torch.slice_scatter(x, x[1:] * 2, 0, 1)
    x.zero_()
    return result


compiled = torch.compile(scatter, backend="inductor")
x = torch.arange(12.0).reshape(3, 4)
actual, expected = compiled(x.clone()), scatter(x.clone())
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
