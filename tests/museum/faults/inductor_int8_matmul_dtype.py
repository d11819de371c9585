"""Inductor returns int64 for a product of batches of int8 matrices.

software: Inductor
kind: dtype
known: https://github.com/pytorch/pytorch/issues/191308
"""

import torch

a, b = torch.ones((1, 1, 2), dtype=torch.int8), torch.ones((1, 2, 2), dtype=torch.int8)
actual = torch.compile(torch.matmul)(a, b).dtype
assert actual == torch.int8, f"{actual} instead of torch.int8"
