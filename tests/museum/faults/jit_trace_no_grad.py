"""`torch.jit.trace` loses a block of `torch.no_grad`: gradients also flow through the operations in it.

software: torch.jit
kind: wrong gradients
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        with torch.no_grad():
            shift = self.weight * 2
        return self.weight * x + shift


model, x = Model(), torch.full((1,), 3.0)
torch.jit.trace(model, x)(x).backward()
assert model.weight.grad == 3, f"a gradient of {model.weight.grad.item()} instead of 3"
