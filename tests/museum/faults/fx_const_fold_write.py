"""`split_const_subgraphs` folds a buffer that the program writes to.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch.fx.experimental.const_fold import split_const_subgraphs


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        y = self.count + 1
        self.count.add_(1)
        return x + y


folded = split_const_subgraphs(Model())
folded.run_folding() if hasattr(folded, "run_folding") else None
x = torch.zeros(1)
model = Model()
expected, actual = [model(x), model(x)], [folded(x), folded(x)]
assert expected == actual, f"{actual} instead of {expected}"
