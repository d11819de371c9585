"""`X86InductorQuantizer` raises for a convolution in a block of `torch.no_grad`.

software: torchao
kind: error
known: not found
"""

import torch
import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e


class Model(nn.Sequential):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


model = Model(nn.Conv2d(1, 1, 1)).eval()
program = torch.export.export(model, (torch.ones(1, 1, 2, 2),)).module()
quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
try:
    prepare_pt2e(program, quantizer)
except ValueError as error:
    raise AssertionError(error) from None
