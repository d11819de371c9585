"""`split_module` returns a tuple for `ep.module()`, which returns a tensor.

software: torch.fx
kind: structure
known: not found
"""

import torch
from torch import nn
from torch.fx.passes.split_module import split_module

program = torch.export.export(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.ones(1, 2),)).module()
result = split_module(program, program, lambda node: int(node.name == "relu"))(torch.ones(1, 2))
assert isinstance(result, torch.Tensor), f"{type(result).__name__} instead of a tensor"
