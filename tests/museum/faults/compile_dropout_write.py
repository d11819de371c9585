"""`torch.compile` loses a write to the result of dropout in evaluation mode, which is the input itself.

software: torch.compile
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/195422
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        y = nn.functional.dropout(x, training=False)
        y.add_(1)
        return x


model, args = Model().eval(), (torch.zeros(1),)
program = torch.compile(model, backend="aot_eager")
actual = program(torch.zeros(1))
assert actual == 1, f"{actual} instead of 1"
