"""An exported `contiguous()` returns an alias of an input in another layout, although eager copies it.

software: torch.export
kind: aliasing
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.contiguous()


model, args = Model().eval(), (torch.zeros(2, 3),)
program = torch.export.export(model, args).module()
x = torch.zeros(3, 2).t()
program(x).add_(1)
assert not x.any(), f"{x} is written to"
