"""What is timed to learn how fast this machine is: products of many sizes, and operators on tensors of some sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fx.analysis.kernel_calls import KernelCall, record_calls
from fx.capture.tracer import symbolic_trace
from fx.graph import Graph
from fx.graph_module import GraphModule

_MOST_WORK = 4e8
"""Floating-point operations of the largest product: some milliseconds."""
_COUNTS = (1, 1 << 10, 1 << 14, 1 << 18, 1 << 21)
"""Elements of the operands of operators."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One call to time."""

    family: str
    """Which times it is one of: a kind of product, or the name of an operator."""
    call: KernelCall
    """The call."""


def _spread(count: int, axes: int) -> Iterator[tuple[float, ...]]:
    """Points that fill a cube evenly: the sequence of Halton."""
    primes = (2, 3, 5, 7, 11, 13)[:axes]
    for number in range(1, count + 1):
        point: list[float] = []
        for prime in primes:
            left, share, place = number, 1.0, 0.0
            while left:
                share /= prime
                place += share * (left % prime)
                left //= prime
            point.append(place)
        yield tuple(point)


def _between(low: float, high: float, share: float, step: int = 1) -> int:
    """An integer that lies so far between two others on a logarithmic scale, a multiple of ``step``."""
    size = math.exp(math.log(low) + (math.log(high) - math.log(low)) * share)
    return max(step, round(size / step) * step)


def _calls(function: Callable[..., Any], *args: torch.Tensor) -> tuple[KernelCall, ...]:
    """The kernels that a function or module calls."""
    with torch.no_grad():
        if isinstance(function, nn.Module):
            return record_calls(symbolic_trace(nn.Sequential(function)), *args).calls
        graph = Graph()
        given = [graph.placeholder(f"x_{number}") for number in range(len(args))]
        graph.output(graph.call_function(function, tuple(given)))
        return record_calls(GraphModule({}, graph), *args).calls


def _greatest(family: str, function: Callable[..., Any], *args: torch.Tensor) -> Probe:
    """A probe of the kernel with most operations of those that a function calls."""
    return Probe(family, max(_calls(function, *args), key=lambda call: call.work.flops))


def product_probes() -> Iterator[Probe]:
    """Products of matrices, convolutions, attention and recurrent layers of sizes as models have them."""
    yield from _matrix_probes()
    yield from _convolution_probes()
    for heads, length, width in _ATTENTION:
        shape = (1, heads, length, width)
        yield _greatest("attention", F.scaled_dot_product_attention, *[torch.empty(shape)] * 3)
    for steps, samples, size, hidden in _RECURRENT:
        yield _greatest("recurrent", nn.LSTM(size, hidden).eval(), torch.empty(steps, samples, size))


def _matrix_probes() -> Iterator[Probe]:
    for place, (a, b, c, _) in enumerate(_spread(112, 4)):
        rows, columns, depth = _between(1, 2048, a), _choose(_WIDTHS, b), _choose(_WIDTHS, c)
        groups = (1, 1, 1, 12, 1, 1, 64)[place % 7]
        if groups > 1:
            rows, columns, depth = (min(size, 256) for size in (rows, columns, depth))
        if 2.0 * rows * columns * depth * groups > _MOST_WORK:
            continue
        if groups > 1:
            first, second = torch.empty(groups, rows, depth), torch.empty(groups, depth, columns)
            yield _greatest("matrix", torch.bmm, first, second)
        else:
            yield _greatest("matrix", nn.Linear(depth, columns), torch.empty(rows, depth))


def _convolution_probes() -> Iterator[Probe]:
    for place, (a, b, c, d) in enumerate(_spread(176, 4)):
        window, step = ((1, 1), (3, 1), (3, 2), (1, 1), (3, 1), (5, 1), (1, 2), (7, 2))[place % 8]
        given = 3 if window == 7 else _choose(_CHANNELS, a)
        made, side, batch = _choose(_CHANNELS, b), _between(3, 112, c), (1, 1, 2, 4, 8)[int(5 * d)]
        result = -(-side // step)
        if 2.0 * batch * result**2 * given * window**2 * made > _MOST_WORK:
            continue
        module = nn.Conv2d(given, made, window, step, window // 2)
        yield _greatest("convolution", module, torch.empty(batch, given, side, side))
    for channels, side, window, step in _DEPTHWISE:
        module = nn.Conv2d(channels, channels, window, step, window // 2, groups=channels)
        yield _greatest("depthwise", module, torch.empty(1, channels, side, side))


def smallest_products() -> Iterator[Probe]:
    """A product of each kind that takes little more than its launch."""
    yield _greatest("matrix", nn.Linear(2, 2), torch.empty(1, 2))
    yield _greatest("small convolution", nn.Conv2d(2, 2, 1), torch.empty(1, 2, 1, 1))
    yield _greatest("convolution", nn.Conv2d(8, 8, 3, padding=1), torch.empty(2, 8, 4, 4))
    yield _greatest("depthwise", nn.Conv2d(2, 2, 1, groups=2), torch.empty(1, 2, 1, 1))
    shape = (1, 1, 2, 4)
    yield _greatest("attention", F.scaled_dot_product_attention, *[torch.empty(shape)] * 3)
    yield _greatest("recurrent", nn.LSTM(2, 2).eval(), torch.empty(1, 1, 2))


_WIDTHS = (4, 8, 10, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_CHANNELS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DEPTHWISE = (
    (8, 28, 3, 1), (32, 112, 3, 1), (96, 56, 3, 2), (144, 28, 5, 1), (384, 14, 3, 1), (960, 7, 5, 1), (16, 14, 3, 1),
)  # fmt: skip
_ATTENTION = (
    (2, 8, 8), (4, 16, 32), (12, 128, 64), (12, 512, 64), (48, 64, 32), (2, 256, 128), (96, 128, 64), (8, 32, 16),
    (12, 197, 64), (2, 24, 8),
)  # fmt: skip
_RECURRENT = (
    (4, 1, 8, 8), (8, 1, 16, 16), (8, 8, 16, 32), (32, 1, 128, 256), (64, 8, 64, 64), (16, 8, 256, 256),
    (64, 1, 300, 512), (16, 32, 128, 128), (128, 1, 64, 96), (24, 4, 200, 384), (48, 16, 32, 48), (12, 2, 512, 640),
)  # fmt: skip


def _choose(sizes: tuple[int, ...], share: float) -> int:
    return sizes[min(int(share * len(sizes)), len(sizes) - 1)]


def operator_probes() -> Iterator[Probe]:
    """Operators that are not products, each on tensors of several sizes."""
    for count in _COUNTS:
        flat, side = torch.empty(count), max(1, math.isqrt(count))
        rows = torch.empty(max(1, count // 64), 64) if count >= 64 else torch.empty(1, count)
        image = torch.empty(1, 16, max(2, side // 4), max(2, side // 4))
        for function in _ELEMENT_WISE:
            yield from _timed(function, flat)
        for function in _ON_TWO:
            yield from _timed(function, flat, flat)
        for function in _ON_ROWS:
            yield from _timed(function, rows)
        width = rows.shape[1]
        yield from _timed(nn.LayerNorm(width), rows)
        for module in (nn.BatchNorm2d(16).eval(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)):
            yield from _timed(module, image)
        yield from _timed(lambda x: F.pixel_shuffle(x, 2), image)
        yield from _timed(lambda x: x.mean((2, 3)), image)
        mask = torch.empty(rows.shape, dtype=torch.bool)
        yield from _timed(lambda x, m: x.masked_fill(m, -1.0), rows, mask)
        yield from _timed(lambda x, m: torch.where(m, x, 0.0), rows, mask)
        yield from _timed(lambda x: x.transpose(0, 1).contiguous(), rows)
        places = torch.zeros(rows.shape[0], dtype=torch.int64)
        yield from _timed(nn.Embedding(1000, width), places)
        yield from _timed(nn.EmbeddingBag(1000, width), places.reshape(-1, 1))
    for function in _VIEWS:
        yield from _timed(function, torch.empty(4, 4))


_ELEMENT_WISE: tuple[Callable[..., Any], ...] = (
    torch.relu, torch.relu_, torch.sigmoid, torch.tanh,
    torch.exp, F.gelu, F.silu, F.elu, F.hardswish,
    torch.rsqrt, lambda x: x.pow(2), torch.neg, lambda x: x.clone(), lambda x: x * 2,
    lambda x: x.double(), lambda x: x == 0, lambda x: 1 - x, F.leaky_relu, torch.sqrt,
    torch.abs, lambda x: x.clamp(0.0, 6.0),
)  # fmt: skip
_ON_TWO: tuple[Callable[..., Any], ...] = (
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x / y, torch.maximum,
    lambda x, y: torch.cat([x, y]), lambda x, y: torch.stack([x, y]),
)  # fmt: skip
_ON_ROWS: tuple[Callable[..., Any], ...] = (
    lambda x: torch.softmax(x, -1), lambda x: torch.log_softmax(x, -1), lambda x: x.sum(-1), lambda x: x.amax(-1),
    lambda x: x.argmax(-1), lambda x: x.cumsum(-1), lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:]),
)  # fmt: skip
_VIEWS: tuple[Callable[..., Any], ...] = (
    lambda x: x.view(16), lambda x: x.t(), lambda x: x.unsqueeze(0), lambda x: x.transpose(0, 1), lambda x: x[0],
)  # fmt: skip


def _timed(function: Callable[..., Any], *args: torch.Tensor) -> Iterator[Probe]:
    """A probe for each kernel that a function calls: operators are known by what they are, not by who calls them."""
    for call in _calls(function, *args):
        moves = call.name in ("aten.clone", "aten.copy_") and call.made
        is_strided = moves and call.given[0].stride != call.made[0].stride
        yield Probe(f"{call.name}, strided" if is_strided else call.name, call)


CHECKS: tuple[Callable[[], tuple[nn.Module, torch.Tensor]], ...] = (
    lambda: (_convnet(24, 3), torch.rand(1, 3, 48, 48)),
    lambda: (_convnet(64, 4), torch.rand(2, 3, 64, 64)),
    lambda: (_perceptron(48, 3), torch.rand(4, 48)),
    lambda: (_perceptron(900, 4), torch.rand(32, 900)),
    lambda: (nn.Sequential(nn.TransformerEncoderLayer(96, 4, 384)).train(False), torch.rand(40, 2, 96)),
    lambda: (nn.Sequential(nn.LSTM(40, 80)), torch.rand(24, 2, 40)),
)
"""Whole programs, which nothing is fitted to, to see how far estimates are off."""


def _convnet(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def _perceptron(width: int, depth: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    return nn.Sequential(*layers)
