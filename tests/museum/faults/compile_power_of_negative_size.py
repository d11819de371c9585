"""`torch.compile` computes `-(2 ** n)` for `(-2) ** n` of a dynamic size.

software: torch.compile
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197894
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * (-2) ** x.shape[0]


model, args = Model().eval(), (torch.ones(4),)
program = torch.compile(model, backend="aot_eager")
program = torch.compile(model, backend="aot_eager", dynamic=True)
actual = program(torch.ones(2))
assert actual[0] == 4, f"{actual} instead of 4"
