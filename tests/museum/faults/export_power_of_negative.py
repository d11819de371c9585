"""An exported program computes `-(2 ** n)` for `(-2) ** n` of a dynamic size.

software: torch.export
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197894 (the cause; there for torch.compile)
"""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * (-2) ** x.shape[0]


n = torch.export.Dim("n")
program = torch.export.export(Model(), (torch.ones(4),), dynamic_shapes=({0: n},)).module()
actual = program(torch.ones(2))
assert actual[0] == 4, f"{actual} instead of 4"
