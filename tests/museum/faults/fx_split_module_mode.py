"""`split_module` returns a program in training mode for one in evaluation mode.

software: torch.fx
kind: mode
known: not found
"""

import torch
from torch import nn
from torch.fx.passes.split_module import split_module


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 1.0, self.training) if False else x + 1


model = Model().eval()
traced = torch.fx.symbolic_trace(model)
split = split_module(traced, model, lambda node: 0)
assert not any(part.training for part in split.modules()), [part.training for part in split.modules()]
