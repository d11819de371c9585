"""Inductor rounds the quotient before its floor: `1.0 // 0.1` is 10, and 9 in eager and in Python.

software: Inductor
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197895
"""

import torch

compiled = torch.compile(lambda x: x // 0.1, backend="inductor")
actual, expected = compiled(torch.ones(1)), torch.ones(1) // 0.1
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
