"""OpenVINO's subtraction of uint8 saturates, and wraps in eager.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x - 10


x = torch.tensor([250, 7, 3], dtype=torch.uint8)
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, equal_nan=True), f"{actual} instead of {expected}"
