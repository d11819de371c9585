"""`X86InductorQuantizer` raises for a ReLU that is called twice.

software: torchao
kind: error
known: not found
"""

import torch
import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.relu = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.ReLU()

    def forward(self, x):
        return self.relu(self.second(self.relu(self.first(x))))


program = torch.export.export(Model().eval(), (torch.ones(1, 1, 2, 2),)).module()
quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
try:
    prepare_pt2e(program, quantizer)
except ValueError as error:
    raise AssertionError(error) from None
