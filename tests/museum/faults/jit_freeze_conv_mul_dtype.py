"""`torch.jit.freeze` folds a product with a float64 buffer into a float32 convolution, and returns float32.

software: torch.jit
kind: dtype
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)
        self.register_buffer("more", torch.full((1, 1, 1, 1), 0.1, dtype=torch.float64))

    def forward(self, x):
        return torch.mul(self.conv(x), self.more)


model, x = Model().eval(), torch.ones(1, 1, 1, 1)
actual = torch.jit.freeze(torch.jit.trace(model, x))(x)
assert actual.dtype == model(x).dtype, f"{actual.dtype} instead of {model(x).dtype}"
