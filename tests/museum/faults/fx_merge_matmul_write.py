"""`merge_matmul` moves a product across a write to an operand.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.fx.experimental.merge_matmul import merge_matmul


class Model(nn.Module):
    def forward(self, x, y, z):
        a = torch.matmul(x, z)
        z.add_(1)
        return a, torch.matmul(y, z)


expected = Model()(*torch.ones(3, 2, 2))
actual = merge_matmul(Model())(*torch.ones(3, 2, 2))
for right, result in zip(expected, actual, strict=True):
    assert torch.equal(right, result), f"{result} instead of {right}"
