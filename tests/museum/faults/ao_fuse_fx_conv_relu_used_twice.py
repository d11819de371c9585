"""`fuse_fx` adds a ReLU to a convolution that is also called without it.

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
        self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.ReLU()

    def forward(self, x):
        return self.relu(self.conv(x)), self.conv(x)


model = Model().eval()
model.conv.weight.data.fill_(-1.0)
x = torch.ones(1, 1, 1, 1) * 5
for e, a in zip(model(x), fuse_fx(model)(x), strict=True):
    assert torch.allclose(e, a), f"{a} instead of {e}"
