"""`fuse_fx` fails on a batch norm without running statistics, instead of leaving it alone.

software: torch.ao
kind: error
known: not found
"""

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx

model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, track_running_stats=False)).eval()
model(torch.ones(2, 1, 2, 2))
try:
    fuse_fx(model)
except AssertionError as error:
    raise AssertionError(f"fuse_fx fails: {error}") from None
