"""`torch.jit.freeze` scales the wrong dimension of a linear layer on 3-D input.

software: torch.jit
kind: wrong values
known: not found
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
model[1].running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
x = torch.ones(1, 3, 3)
frozen = torch.jit.freeze(torch.jit.script(model))
expected, actual = model(x), frozen(x)
assert torch.allclose(expected, actual, atol=1e-4), f"{actual} instead of {expected}"
