"""Inductor resizes a tensor when the program resizes a view of it.

software: Inductor
kind: shape
known: https://github.com/pytorch/pytorch/issues/191449
"""

import torch


def function(x):
    base = x + 1
    base.view(-1).resize_(12)
    return base + 1


actual = torch.compile(function)(torch.zeros(1)).shape
assert actual == (1,), f"{actual} instead of {torch.Size([1])}"
