"""`fuse_fx` scales the last dimension for a batch norm of the second one, behind a linear layer on 3-D input.

software: torch.ao
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx

model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
model[1].running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
x = torch.ones(1, 3, 3)
expected, actual = model(x), fuse_fx(model)(x)
assert torch.allclose(expected, actual, atol=1e-4), f"{actual} instead of {expected}"
