"""Inductor's `constant_fold` folds a buffer that the program writes to.

software: Inductor
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch._inductor.constant_folding import constant_fold


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count * 1


model = Model()
program = torch.export.export(model, (torch.zeros(1),)).module()
constant_fold(program)
actual = [program(torch.zeros(1)).item(), program(torch.zeros(1)).item()]
assert actual == [1, 2], f"{actual} instead of [1, 2]"
