"""Programs with derivatives of their own, and with recomputation."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .programs import Layered, one_liners, program, rows


class RoundStraight(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ReverseGradient(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class SavedSwish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return gradient * (s * (1 + x * (1 - s))) * 2


class TwoResults(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 5 + second * 7


class SetupStyle(Function):
    @staticmethod
    def forward(x):
        return x.clamp(-1, 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


one_liners(
    rows,
    straight_through_function=lambda x: RoundStraight.apply(x) * 2,
    reversed_gradient=lambda x: ReverseGradient.apply(x * 2, 0.3) + 1,
    named_apply=lambda x: swish(x + 1),
    with_setup_context=lambda x: SetupStyle.apply(x).sum(-1),
)


swish = SavedSwish.apply


@program(rows)
def two_results(x):
    a, b = TwoResults.apply(x)
    return a * b


@program(rows)
class ActivationModule(Layered):
    def forward(self, x):
        return SavedSwish.apply(self.layer(x))


@program(rows)
class OnParametersAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 36).reshape(6, 6))

    def forward(self, x):
        return x @ RoundStraight.apply(self.weight)


@program(rows)
class OnBuffersAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(-2, 2, 6))

    def forward(self, x):
        return x * RoundStraight.apply(self.table)


@program(rows)
class CheckpointedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False) + x


@program(rows)
class CheckpointedInTraining(Layered):
    def forward(self, x):
        if self.training:
            return checkpoint(self.layer, x, use_reentrant=False)
        return self.layer(x)


@program(rows)
class CheckpointedMethod(Layered):
    def _inner(self, x, scale):
        return torch.tanh(self.layer(x)) * scale

    def forward(self, x):
        return checkpoint(self._inner, x, 2.0, use_reentrant=False)


@program(rows)
class CheckpointedClosure(Layered):
    def forward(self, x):
        y = x.sin()

        def inner(z):
            return self.layer(z) + y

        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


@program(rows)
class CheckpointedSequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())

    def forward(self, x):
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@program(rows)
class CheckpointedDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False) * 2


@program(rows)
def gradient_hook(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 3)
    return y + 1
