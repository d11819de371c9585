"""`torch.compile` ignores the `backward` of a `torch.autograd.Function` in `torch.func.grad`.

software: torch.compile
kind: wrong gradients
known: https://github.com/pytorch/pytorch/issues/193279
"""

import torch


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


gradient = torch.func.grad(lambda x: Doubled.apply(x).sum())
actual, expected = torch.compile(gradient, backend="aot_eager")(torch.zeros(1)), gradient(torch.zeros(1))
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
