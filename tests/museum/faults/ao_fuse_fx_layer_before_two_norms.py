"""`fuse_fx` drops the second of two batch norms behind calls of one convolution.

software: torch.ao
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)
        self.bn2 = nn.BatchNorm2d(1)
        self.bn.running_mean.fill_(3.0)

    def forward(self, x):
        return self.bn(self.conv(x)), self.bn2(self.conv(x))


model, x = Model().eval(), torch.ones(1, 1, 1, 1)
for expected, actual in zip(model(x), fuse_fx(model)(x), strict=True):
    assert torch.allclose(expected, actual, atol=1e-4), f"{actual} instead of {expected}"
