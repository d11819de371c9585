"""`torch.compile` ignores a hook for gradients that a module gets after the first call.

software: torch.compile
kind: wrong gradients
known: https://github.com/pytorch/pytorch/issues/117265
"""

import torch
from torch import nn

layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, requires_grad=True)
compiled = torch.compile(lambda x: layer(x), backend="aot_eager")
compiled(x)
layer.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,))
actual, expected = (torch.autograd.grad(each(x), x)[0] for each in (compiled, layer))
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
