"""Programs whose forward is decorated and takes starred or keyword-only arguments."""

from __future__ import annotations

import functools

import torch
from torch import nn

from .programs import Layered, one_liners, program, rows


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


class _Layer(Layered):
    power = 2


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


def _scaled_by(function, factor, *args, **kwargs):
    return function(*args, **kwargs) * factor


def partially(function):
    return functools.wraps(function)(functools.partial(_scaled_by, function, 3))


@program(rows)
@partially
def decorated_by_partial(x, *others, scale=0.5):
    return x * scale


class Scaling:
    """A decorator that is a class."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs) * 2

    def __get__(self, owner, kind=None):
        return self if owner is None else functools.partial(self, owner)


@program(rows)
@Scaling
def decorated_by_class(x, *, scale=0.5):
    return x * scale


@Scaling
def _scaled(x, *others, scale=0.5):
    return x * scale


one_liners(
    rows,
    calls_decorated_by_class=lambda x: _scaled(x, scale=2.0),
    cached_of_number=lambda x: x + _table(6),
    cached_of_traced=lambda x: _cached(x) + 1,
    cached_of_traced_number=lambda x: x * _cached_of_size(x.shape[0]),
    dispatched=lambda x: _shown(x),
)


@program(rows)
class ForwardDecoratedByClass(_Layer):
    @Scaling
    def forward(self, x, *, scale=0.5):
        return self.layer(x) * scale


@program(rows)
class MethodDecoratedByClass(_Layer):
    @Scaling
    def shifted(self, x):
        return self.layer(x) + 1

    def forward(self, x):
        return self.shifted(x)


@functools.lru_cache(maxsize=None)
def _table(size):
    return torch.arange(float(size))


@functools.lru_cache(maxsize=None)
def _cached(x):
    return x * 2


@program(rows)
@functools.lru_cache(maxsize=None)
def cached_program(x):
    return x * 2


@functools.cache
def _cached_of_size(n):
    return n * 2


@functools.singledispatch
def _shown(x):
    return x * 3


@_shown.register
def _(x: torch.Tensor):
    return x * 2


@_shown.register(list)
def _of_list(x):
    return x[0] * 5


@program(rows)
class Dispatching(_Layer):
    @functools.singledispatchmethod
    def combined(self, x):
        return x * 3

    @combined.register
    def _(self, x: torch.Tensor):
        return self.layer(x)

    @combined.register(tuple)
    def _of_tuple(self, x):
        return x[0] + 1

    def forward(self, x):
        return self.combined(x) + self.combined((x, x))


@program(rows)
class StaticForward(nn.Module):
    @staticmethod
    def forward(x):
        return x * 2


@program(rows)
class StaticHelpers(_Layer):
    @staticmethod
    def doubled(x, *others):
        return x * 2

    @classmethod
    def powered(cls, x, *, by=None):
        return x ** (by or cls.power)

    tripled = staticmethod(lambda x: x * 3)

    def forward(self, x):
        return self.tripled(self.powered(self.doubled(self.layer(x))))


@program(rows)
class StaticDecorated(_Layer):
    @staticmethod
    @doubled
    def doubled_again(x):
        return x * 2

    @functools.cached_property
    def factor(self):
        return self.power + 1

    def forward(self, x):
        return self.doubled_again(x)


@program(rows)
class ForwardByPartialmethod(_Layer):
    def scaled(self, factor, x):
        return self.layer(x) * factor

    forward = functools.partialmethod(scaled, 2.0)


@program(rows)
class MethodByPartialmethod(_Layer):
    def scaled(self, factor, x):
        return self.layer(x) * factor

    doubled = functools.partialmethod(scaled, 2.0)

    def forward(self, x):
        return self.doubled(x)


@program(rows)
@doubled
@doubled
@doubled
def decorated_thrice(x, *others, scale=0.5, **options):
    return x * scale
