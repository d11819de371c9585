"""`torch.compile` computes gradients in bfloat16 where `autocast` is disabled in a block.

software: torch.compile
kind: wrong gradients
known: https://github.com/pytorch/pytorch/issues/179804
"""

import torch
from torch import nn

torch.manual_seed(0)
layer, x = nn.Linear(8, 8), torch.randn(4, 8)


def function(x):
    with torch.autocast("cpu", enabled=False):
        return x @ layer.weight.T


gradients = []
for call in (torch.compile(function, backend="aot_eager"), function):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = call(x)
    gradients.append(torch.autograd.grad(result.sum(), layer.weight)[0])
actual, expected = gradients
assert torch.allclose(actual, expected), f"{actual} instead of {expected}"
