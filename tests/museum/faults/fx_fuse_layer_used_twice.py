"""`torch.fx.experimental.optimization.fuse` folds a batch norm into a convolution that is also called without it.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)
        self.bn.running_mean.fill_(3.0)

    def forward(self, x):
        return self.bn(self.conv(x)), self.conv(x)


model, x = Model().eval(), torch.ones(1, 1, 1, 1)
for expected, actual in zip(model(x), fuse(model)(x), strict=True):
    assert torch.allclose(expected, actual, atol=1e-4), f"{actual} instead of {expected}"
