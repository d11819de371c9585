"""`torch.jit.freeze` makes a number of a float64 parameter without dimensions, and returns float32.

software: torch.jit
kind: dtype
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return x / self.weight


model, x = Model().eval(), torch.ones(())
compiled = torch.jit.freeze(torch.jit.trace(model, x))
actual, expected = compiled(x), model(x)
assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
