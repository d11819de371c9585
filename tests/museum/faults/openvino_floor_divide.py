"""OpenVINO's floor division rounds the quotient first: `1.0 // 0.1` is 10, and 9 in eager.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x // 0.1


x = torch.tensor([1.0, 0.3, -0.7])
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, equal_nan=True), f"{actual} instead of {expected}"
