"""OpenVINO's `cumsum` of uint8 stays in uint8 and wraps, and is int64 in eager.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.cumsum(0)


x = torch.tensor([200, 100, 50], dtype=torch.uint8)
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.equal(expected, actual.long()), f"{actual} instead of {expected}"
