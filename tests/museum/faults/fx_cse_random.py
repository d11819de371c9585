"""`CSEPass` merges two draws of random numbers.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch.fx.passes.dialect.common.cse_pass import CSEPass


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.rand_like(x) - torch.rand_like(x)


program = torch.export.export(Model(), (torch.ones(20),)).module()
(actual,) = CSEPass()(program).graph_module(torch.ones(20))
assert actual.any(), f"{actual} instead of differences of random numbers"
