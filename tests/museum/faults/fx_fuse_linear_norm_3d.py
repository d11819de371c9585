"""`torch.fx.experimental.optimization.fuse` scales the wrong dimension of a linear layer on 3-D input.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
model[1].running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
x = torch.ones(1, 3, 3)
expected, actual = model(x), fuse(model)(x)
assert torch.allclose(expected, actual, atol=1e-4), f"{actual} instead of {expected}"
