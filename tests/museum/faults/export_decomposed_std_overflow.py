"""The decomposition of `std_mean` squares values that overflow.

software: torch.export
kind: wrong values
known: not found
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.std_mean(x)


model, args = Model().eval(), (torch.tensor([1e30, -1e30]),)
program = torch.export.export(model, args).run_decompositions().module()
expected, actual = model(*args), program(*args)
assert all(torch.allclose(e, a, equal_nan=True) for e, a in zip(expected, actual, strict=True)), (
    f"{actual} instead of {expected}"
)
