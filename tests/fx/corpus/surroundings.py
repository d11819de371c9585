"""Programs that keep what they know outside of their modules' attributes, or change what is there."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import torch
from torch import nn

from .programs import given, images, one_liners, program, rows

_count = 0
_STATE = {"n": 1}
_SCALES = itertools.count(2)
_GENERATOR = np.random.default_rng(3)
_MEMO: dict[int, torch.Tensor] = {}
_SETTINGS = np.array([1.0, 2.0])


@program(rows)
def counted_in_global(x):
    global _count
    _count += 1
    return x * _count


def _step():
    _STATE["n"] += 1
    return _STATE["n"]


one_liners(
    rows,
    counted_by_helper=lambda x: x * _step(),
    global_iterator=lambda x: x * next(_SCALES),
    global_generator=lambda x: x + float(_GENERATOR.normal()),
    global_array_read=lambda x: x * float(_SETTINGS[1]),
    counted_in_default=lambda x: _appended(x),
    memo_by_decorator=lambda x: x + _table(6),
    generator_made_without_seed=lambda x: x + float(np.random.default_rng().normal()),
    generator_made_with_seed=lambda x: x + float(np.random.default_rng(5).normal()),
    directory_of_value=lambda x: x * 2 if "softmax" in dir(x) and "node" not in dir(x) else x * 3,
)


@program(rows)
def memo_in_global(x):
    if 6 not in _MEMO:
        _MEMO[6] = torch.arange(6.0)
    return x + _MEMO[6]


@program(rows)
def global_iterator_looped(x):
    for scale in _SCALES:
        return x * scale


@program(rows)
def global_array_written(x):
    _SETTINGS[0] += 1
    return x * float(_SETTINGS[0])


def _enclosed():
    calls = 0

    def program_in_closure(x):
        nonlocal calls
        calls += 1
        return x * calls

    return program_in_closure


counted_in_closure = program(rows)(_enclosed())


def _appended(x, seen=[]):  # noqa: B006 - what it is about
    seen.append(1)
    return x * len(seen)


@program(rows)
def counted_on_function(x):
    counted_on_function.calls = getattr(counted_on_function, "calls", 0) + 1
    return x * counted_on_function.calls


@functools.lru_cache
def _table(width):
    return torch.linspace(0, 1, width)


@program(rows)
class CountedOnClass(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * type(self).calls


@program(rows)
class CountedInClassList(nn.Module):
    seen: list[int] = []

    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


@program(rows)
class CountedInArray(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = np.zeros(1)

    def forward(self, x):
        self.calls += 1
        return x * float(self.calls[0])


@program(rows)
class CountedByItertools(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = itertools.count(1)

    def forward(self, x):
        return x * next(self.calls)


@program(rows)
class TakesTurns(nn.Module):
    def __init__(self):
        super().__init__()
        self.turns = itertools.cycle([1.0, 2.0])

    def forward(self, x):
        return x * next(self.turns)


@program(rows)
class OwnIterator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x):
        layers = iter(self.layers)
        return next(layers)(x) + next(layers)(x) * next(self.parameters()).sum()


@program(rows)
class DrawsByRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = random.Random(3)

    def forward(self, x):
        return x + self.numbers.random()


@program(rows)
class DrawsByNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = np.random.default_rng(3)

    def forward(self, x):
        return x + float(self.numbers.normal())


@program(rows)
class DrawsByRandomState(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = np.random.RandomState(3)

    def forward(self, x):
        return x + self.numbers.rand()


@program(rows)
class SetsLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.p = 0.0
        return self.drop(x)


@program(images)
class SetsLeafInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 2, 3), nn.Upsample(scale_factor=2)])

    def forward(self, x):
        for layer in self.layers:
            layer.scale_factor = 3
            x = layer(x)
        return x


@program(rows)
class SetsUncalledLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.p = 0.0
        return x * (1 - self.drop.p)


@program(rows)
def hooks_on_saved(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda saved: saved):
        return x * x


@program(rows)
def saved_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        return x * x


@program(rows)
def default_dtype_set(x):
    torch.set_default_dtype(torch.float64)
    y = x + torch.ones(6)
    torch.set_default_dtype(torch.float32)
    return y


@program(rows)
def identities_compared(x):
    y = x.contiguous()
    return y * 2 if id(y) == id(x) else y * 3


@program(rows, given(None))
def any_of_optional(x, mask=None):
    return x * 2 if any(part is not None for part in (mask,)) else x * 3
