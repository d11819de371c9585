"""`split_const_subgraphs` folds a draw of random numbers to a constant.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.fx.experimental.const_fold import split_const_subgraphs


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("p", torch.full((8,), 0.5))

    def forward(self, x):
        return x + torch.bernoulli(self.p), x + nn.functional.dropout(self.p, training=True)


folded = split_const_subgraphs(Model())
r = [folded(torch.zeros(8)) for _ in range(6)]
assert any(not torch.equal(r[0][0], o[0]) for o in r), "the same random numbers in each call"
assert any(not torch.equal(r[0][1], o[1]) for o in r), "the same random numbers in each call"
