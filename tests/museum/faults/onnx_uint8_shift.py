"""`torch.onnx` exports a left shift of uint8 as one of int8, so that results above 127 are negative.

software: torch.onnx
kind: wrong values
known: not searched for
"""

import io

import onnxruntime
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.bitwise_left_shift(x, 3)


x = torch.tensor([30, 3], dtype=torch.uint8)
torch.onnx.export(Model(), (x,), dynamo=True, verbose=False).save(file := io.BytesIO())
session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
assert actual.tolist() == Model()(x).tolist(), f"{actual} instead of {Model()(x)}"
