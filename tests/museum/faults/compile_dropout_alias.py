"""`torch.compile` returns a copy for dropout in evaluation mode, which returns its input.

software: torch.compile
kind: aliasing
known: https://github.com/pytorch/pytorch/issues/115249
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, training=False)


model, args = Model().eval(), (torch.zeros(1),)
program = torch.compile(model, backend="aot_eager")
x = torch.zeros(1)
program(x).add_(1)
assert x == 1, f"{x} instead of 1"
