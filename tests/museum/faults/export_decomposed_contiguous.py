"""A decomposed `contiguous().view(-1)` fails on an input in another layout.

software: torch.export
kind: error
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.contiguous().view(-1)


model, args = Model().eval(), (torch.zeros(2, 3),)
program = torch.export.export(model, args).run_decompositions().module()
try:
    actual = program(torch.zeros(3, 2).t())
except RuntimeError as error:
    raise AssertionError(error) from None
