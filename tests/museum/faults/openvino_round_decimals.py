"""OpenVINO ignores `decimals` of `round`.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.round(decimals=2)


x = torch.tensor([0.125, 1.118, -2.005])
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, atol=1e-3), f"{actual} instead of {expected}"
