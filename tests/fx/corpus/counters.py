"""Programs that keep counters, caches and lists in their modules or around them."""

from __future__ import annotations

import functools

import torch
from torch import nn

from .programs import Layered, longer, program, rows


@program(rows)
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * self.step


@program(rows)
class FirstCallOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.initialized = False

    def forward(self, x):
        if not self.initialized:
            self.initialized = True
            return x * 0
        return x


@program(rows)
class Warmup(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.step += 1
        return x * torch.clamp(self.step / 3, max=1.0)


@program(rows)
class WarmupBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.step.add_(1)
        if self.step < 3:
            return x * 0.5
        return x


@program(rows)
class DataDependentInit(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        if not self.initialized:
            with torch.no_grad():
                self.scale.copy_(x.abs().mean(0))
                self.initialized.fill_(True)
        return x * self.scale


@program(rows)
class CachedResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = x.mean(0)
        return x - self.cache


@program(rows)
class CachedInDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        if "mean" not in self.cache:
            self.cache["mean"] = x.mean(0)
        return x - self.cache["mean"]


@program(rows)
class CachedConstant(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.arange(6.0)
        return x * self.mask


@program(longer)
class CachedBySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.cached_length = 0
        self.cached = None

    def forward(self, x):
        length = x.shape[1]
        if self.cached is None or length > self.cached_length:
            self.cached_length = length
            self.cached = torch.arange(length)
        return x + self.cached[:length, None]


@program(rows)
class Recorded(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        y = x * 2
        self.seen.append(y)
        return y


@program(rows)
class RecordedCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


@program(rows)
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(6)

    def forward(self, x):
        self.hidden = self.hidden * 0.5 + x.mean(0).detach()
        return x + self.hidden


@program(rows)
class MemoryInBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(6))

    def forward(self, x):
        self.hidden = self.hidden * 0.5 + x.mean(0).detach()
        return x + self.hidden


@program(rows)
class MemoryInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(6))

    def forward(self, x):
        self.hidden.mul_(0.5).add_(x.mean(0).detach())
        return x + self.hidden


@program(rows)
class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(4, 6))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        scores = x @ self.queue.clone().detach().t()
        with torch.no_grad():
            at = int(self.pointer)
            self.queue[at] = x.mean(0)
            self.pointer[0] = (at + 1) % 4
        return scores


_CALLS = {"count": 0}


@program(rows)
def global_counter(x):
    before = _CALLS["count"]
    _CALLS["count"] = before + 1
    try:
        return x * 2
    finally:
        _CALLS["count"] = before


_SEEN: list[object] = []


@program(rows)
def global_list(x):
    _SEEN.append(x)
    y = x * 2
    _SEEN.clear()
    return y


@functools.lru_cache
def _frequencies(size, base):
    return base ** (torch.arange(size) / size)


@program(rows)
def cached_function(x):
    return x * _frequencies(6, 2.0)


@functools.lru_cache
def _grid(size):
    return torch.arange(size)


@program(longer)
def cached_by_traced_size(x):
    return x + _grid(x.shape[1])[:, None]


@program(rows)
class AssignedNumber(nn.Module):
    def forward(self, x):
        self.width = 6
        return x * self.width


@program(rows)
class AssignedTracedSize(nn.Module):
    def forward(self, x):
        self.batch = x.shape[0]
        return x * self.batch


@program(rows)
class LazyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(6, 2)
        return self.layer(x)


@program(rows)
class FlagSet(Layered):
    def __init__(self):
        super().__init__()
        self.layer.fast = False

    def forward(self, x):
        self.layer.fast = True
        return self.layer(x)


@program(rows)
class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.even = True

    def forward(self, x):
        self.even = not self.even
        return x * 2 if self.even else x * 3


@program(rows)
class Iterated(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = iter([1.0] * 5 + [2.0] * 100)

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        return x * next(self.scales)


@program(rows)
class Looped(Iterated):
    def __init__(self):
        super().__init__()
        self.scales = (float(number) for number in range(1, 100))

    def forward(self, x):
        for scale in self.scales:
            return x * scale
