"""OpenVINO adds int64 in 32 bits.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


x = torch.tensor([2**40 + 1, -(2**35), 3])
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, equal_nan=True), f"{actual} instead of {expected}"
