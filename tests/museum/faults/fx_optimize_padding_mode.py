"""`torch.fx.experimental.optimization.optimize_for_inference` ignores `padding_mode`.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch import nn
from torch.fx.experimental.optimization import optimize_for_inference

conv = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular", bias=False)
nn.init.ones_(conv.weight)
model, x = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2)).eval(), torch.ones(1, 1, 4, 4)
expected, actual = model(x), optimize_for_inference(model)(x)
assert torch.allclose(expected, actual), f"{actual} instead of {expected}"
