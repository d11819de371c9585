"""Programs of libraries that mark functions with ``torch.fx.wrap``."""

from __future__ import annotations

import torch
import torch.fx
from torch import nn

from .programs import program, rows, sequences


@torch.fx.wrap
def _padded_to_even(x):
    if x.shape[0] % 2 == 1:
        x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    return x


def _clipped(x, limit):
    return x.clamp(max=limit) if float(x.max()) > limit else x


torch.fx.wrap("_clipped")


@torch.fx.wrap
def _drawn(count):
    return count * 2


@program(rows)
def marked_branch(x):
    return _padded_to_even(x * 2) + 1


@program(rows)
def marked_by_name(x):
    return _clipped(x, limit=0.5).exp()


@program(rows)
def marked_without_traced_values(x):
    return x + _drawn(3)


@program(sequences)
class MarkedInModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(_padded_to_even(_clipped(x, 1.0)))


@program(rows)
class MarkedInInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(_Shifted(), nn.ReLU(), _Shifted())

    def forward(self, x):
        return self.layers(x)


class _Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return _clipped(x + self.bias, 2.0)


@program(rows)
class MarkedGivenParameter(nn.Module):
    """As Swin gives its attention function the weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6))

    def forward(self, x):
        return _scaled(x, self.weight, scale=torch.tensor(0.5))


def _scaled(x, weight, scale):
    if x.shape[-1] != weight.shape[0]:
        raise ValueError("does not fit")
    return (x @ weight) * scale


torch.fx.wrap("_scaled")
