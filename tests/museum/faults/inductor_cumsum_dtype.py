"""Inductor ignores `dtype=` of `cumsum` on a tensor of equal values.

software: Inductor
kind: dtype
known: https://github.com/pytorch/pytorch/issues/189518
"""

import torch


def function():
    return torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)


actual = torch.compile(function)().dtype
assert actual == torch.bfloat16, f"{actual} instead of torch.bfloat16"
