"""Programs whose forward is decorated and takes starred or keyword-only arguments."""

from __future__ import annotations

import functools

import torch
from torch import nn

from .programs import program, rows


def doubled(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return inner


def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def inner(self, *args, factor=factor, **kwargs):
            return function(self, *args, **kwargs) * factor

        return inner

    return decorate


def with_options(function):
    @functools.wraps(function)
    def inner(self, *args, **kwargs):
        kwargs.setdefault("power", self.power)
        return function(self, *args, **kwargs)

    return inner


class _Layer(nn.Module):
    power = 2

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)


@program(rows)
class NoGradWithStar(_Layer):
    @torch.no_grad()
    def forward(self, x, *others):
        return self.layer(x)


@program(rows)
class NoGradWithKeywordOnly(_Layer):
    @torch.no_grad()
    def forward(self, x, *, scale=2.0):
        return self.layer(x) * scale


@program(rows)
class DoubledWithKeywords(_Layer):
    @doubled
    def forward(self, x, **options):
        return self.layer(x)


@program(rows)
class DecoratedTwice(_Layer):
    @doubled
    @scaled(3)
    def forward(self, x, *, scale=0.5):
        return self.layer(x) * scale


@program(rows)
class DecoratorWithOptions(_Layer):
    @with_options
    def forward(self, x, **options):
        return self.layer(x) ** options["power"]


@program(rows)
class DecoratorWithDefault(_Layer):
    @with_options
    def forward(self, x, power=3, *others):
        return self.layer(x) ** power


@program(rows)
class AutocastWithKeywordOnly(_Layer):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x, *, scale=2.0):
        return self.layer(x) * scale


@program(rows)
class InferenceOfInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = NoGradWithKeywordOnly()

    @doubled
    def forward(self, x, *, scale=2.0):
        return self.inner(x, scale=scale) + x
