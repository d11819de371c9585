"""`fuse_fx` makes weights of a wrong shape for a grouped transposed convolution.

software: torch.ao
kind: error
known: https://github.com/pytorch/pytorch/issues/180995
"""

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx

model = nn.Sequential(nn.ConvTranspose2d(2, 2, 1, groups=2), nn.BatchNorm2d(2)).eval()
model(torch.ones(1, 2, 1, 1))
try:
    fuse_fx(model)(torch.ones(1, 2, 1, 1))
except RuntimeError as error:
    raise AssertionError(f"the fused program fails: {error}") from None
