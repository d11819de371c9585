"""Programs of libraries that mark functions with ``torch.fx.wrap``."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque

import torch
import torch.fx
from torch import nn

from .programs import one_liners, program, rows, sequences


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


one_liners(
    rows,
    marked_branch=lambda x: _padded_to_even(x * 2) + 1,
    marked_by_name=lambda x: _clipped(x, limit=0.5).exp(),
    marked_without_traced_values=lambda x: x + _drawn(3),
    marked_given_deque=lambda x: _largest(deque([x, x * 2])),
    marked_given_dataclass=lambda x: _larger(_Pair(x, x * 2)),
    marked_given_keyword_dataclass=lambda x: _larger(pair=_Pair(x * 3, x)),
    marked_given_ordered_dict=lambda x: _largest(OrderedDict(a=x, b=x * 2)),
    marked_given_named_dict=lambda x: _largest(_Named(a=x, b=x * 2)),
    marked_given_set=lambda x: _largest({x, x * 2}),
    marked_given_bag=lambda x: _largest(_Bag(x, x * 2)),
    marked_given_bag_in_list=lambda x: _largest(list(_Bag(x, x * 2))),
    marked_given_deque_in_dict=lambda x: _largest(*[deque([one]) for one in [x]]),
    marked_given_iterator=lambda x: _largest(iter([x, x * 2])),
)


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


@dataclasses.dataclass
class _Pair:
    first: torch.Tensor
    second: torch.Tensor


class _Bag:
    """A container of a class that nobody knows."""

    def __init__(self, *held):
        self.held = held

    def __iter__(self):
        return iter(self.held)


class _Named(dict):
    """A dict of a class of its own."""


@torch.fx.wrap
def _largest(held):
    values = [one for one in (held.values() if isinstance(held, dict) else held)]
    return max(values, key=lambda one: float(one.sum()))


@torch.fx.wrap
def _larger(pair):
    return pair.first if float(pair.first.sum()) > float(pair.second.sum()) else pair.second


@torch.fx.wrap
def _total(held):
    return sum(float(one.sum()) for group in held.values() for one in group)


@program(rows)
def marked_given_default_dict(x):
    groups = defaultdict(list)
    groups["a"].append(x)
    groups["b"].append(x * 2)
    return x * _total(groups)
