"""`CSEPass` merges two equal calls although one of the results is written to.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch.fx.passes.dialect.common.cse_pass import CSEPass


class Model(torch.nn.Module):
    def forward(self, x):
        a, b = torch.sin(x), torch.sin(x)
        a.add_(1)
        return a, b


program = torch.export.export(Model(), (torch.zeros(1),)).module()
a, b = CSEPass()(program).graph_module(torch.zeros(1))
assert (a, b) == (1, 0), f"{a}, {b} instead of 1, 0"
