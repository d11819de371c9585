"""OpenVINO's mean of no elements is 0, and NaN in eager.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x[:0].mean(0)


x = torch.ones(2, 3)
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, equal_nan=True), f"{actual} instead of {expected}"
