"""OpenVINO ignores `beta` of `softplus`.

software: OpenVINO
kind: wrong values
known: not searched for
"""

import openvino
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x, 2.0, 1.0)


x = torch.tensor([0.3, -1.2, 2.5])
engine = openvino.compile_model(openvino.convert_model(Model(), example_input=x), "CPU")
expected, actual = Model()(x), torch.from_numpy(engine(x.numpy())[0])
assert torch.allclose(expected, actual, equal_nan=True), f"{actual} instead of {expected}"
