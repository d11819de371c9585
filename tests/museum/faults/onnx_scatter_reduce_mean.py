"""`torch.onnx` exports `scatter_reduce` with `reduce="mean"` as a plain scatter.

software: torch.onnx
kind: wrong values
known: https://github.com/onnx/onnx/issues/5100
"""

import io

import onnxruntime
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "mean")


x = torch.tensor([1.0, 2.0, 6.0])
torch.onnx.export(Model(), (x,), dynamo=True, verbose=False).save(file := io.BytesIO())
session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
assert actual.tolist() == Model()(x).tolist(), f"{actual} instead of {Model()(x)}"
