"""`fuse_fx` moves a convolution across a write to its input.

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
        nn.init.ones_(self.conv.weight)

    def forward(self, x):
        y = self.conv(x)
        x.add_(1)
        return self.bn(y)


model = Model().eval()
expected, actual = model(torch.zeros(1, 1, 1, 1)), fuse_fx(model)(torch.zeros(1, 1, 1, 1))
assert torch.allclose(expected, actual, atol=1e-3), f"{actual} instead of {expected}"
