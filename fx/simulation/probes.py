"""Probes: the kernels that calibration times, which are products of many sizes and operators on several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.quasirandom import SobolEngine

from fx.analysis.kernel_calls import KernelCall, record_calls
from fx.capture.tracer import symbolic_trace
from fx.graph import Graph
from fx.graph_module import GraphModule

_MOST_WORK = 4e8
"""Floating-point operations of the largest product; it takes a few milliseconds."""
_COUNTS = (1, 1 << 10, 1 << 14, 1 << 18, 1 << 21)
"""Elements per operand of an operator."""


def _spread(count: int, *axes: tuple[int, ...]) -> Iterator[list[int]]:
    """Yield combinations of sizes that fill the space of all combinations evenly."""
    for point in SobolEngine(len(axes)).draw(count).tolist():
        yield [sizes[int(share * len(sizes))] for sizes, share in zip(axes, point, strict=True)]


def _calls(function: Callable[..., Any], *args: torch.Tensor) -> tuple[KernelCall, ...]:
    """Return the kernel calls of a function or module."""
    with torch.no_grad():
        if isinstance(function, nn.Module):
            return record_calls(symbolic_trace(nn.Sequential(function)), *args).calls
        graph = Graph()
        inputs = [graph.placeholder(f"x_{number}") for number in range(len(args))]
        graph.output(graph.call_function(function, tuple(inputs)))
        return record_calls(GraphModule({}, graph), *args).calls


def _greatest(function: Callable[..., Any], *args: torch.Tensor) -> KernelCall:
    """Return the kernel call of a function with the most floating-point operations."""
    return max(_calls(function, *args), key=lambda call: call.work.flops)


def product_probes() -> Iterator[KernelCall]:
    """Yield matrix products, convolutions, attention and recurrent layers, with sizes typical of models."""
    yield from _matrix_probes()
    yield from _convolution_probes()
    for heads, length, width in _ATTENTION:
        yield _greatest(F.scaled_dot_product_attention, *[torch.empty(1, heads, length, width)] * 3)
    for steps, samples, size, hidden in _RECURRENT:
        yield _greatest(nn.LSTM(size, hidden).eval(), torch.empty(steps, samples, size))


def _matrix_probes() -> Iterator[KernelCall]:
    for place, (rows, columns, depth) in enumerate(_spread(112, _ROWS, _WIDTHS, _WIDTHS)):
        groups = (1, 1, 1, 12, 1, 1, 64)[place % 7]
        if groups > 1:
            rows, columns, depth = (min(size, 256) for size in (rows, columns, depth))
        if 2.0 * rows * columns * depth * groups > _MOST_WORK:
            continue
        if groups > 1:
            yield _greatest(torch.bmm, torch.empty(groups, rows, depth), torch.empty(groups, depth, columns))
        else:
            yield _greatest(nn.Linear(depth, columns), torch.empty(rows, depth))


def _convolution_probes() -> Iterator[KernelCall]:
    combinations = _spread(176, _CHANNELS, _CHANNELS, _SIDES, (1, 1, 2, 4, 8))
    for place, (in_channels, out_channels, side, batch) in enumerate(combinations):
        window, step = ((1, 1), (3, 1), (3, 2), (1, 1), (3, 1), (5, 1), (1, 2), (7, 2))[place % 8]
        in_channels = 3 if window == 7 else in_channels
        if 2.0 * batch * (-(-side // step)) ** 2 * in_channels * window**2 * out_channels <= _MOST_WORK:
            module = nn.Conv2d(in_channels, out_channels, window, step, window // 2)
            yield _greatest(module, torch.empty(batch, in_channels, side, side))
    for channels, side, window, step in _DEPTHWISE:
        module = nn.Conv2d(channels, channels, window, step, window // 2, groups=channels)
        yield _greatest(module, torch.empty(1, channels, side, side))


def smallest_products() -> Iterator[KernelCall]:
    """Yield a product of each kind that takes little more than its launch."""
    yield _greatest(nn.Linear(2, 2), torch.empty(1, 2))
    yield _greatest(nn.Conv2d(2, 2, 1), torch.empty(1, 2, 1, 1))
    yield _greatest(nn.Conv2d(8, 8, 3, padding=1), torch.empty(2, 8, 4, 4))
    yield _greatest(nn.Conv2d(2, 2, 1, groups=2), torch.empty(1, 2, 1, 1))
    yield _greatest(F.scaled_dot_product_attention, *[torch.empty(1, 1, 2, 4)] * 3)
    yield _greatest(nn.LSTM(2, 2).eval(), torch.empty(1, 1, 2))


_ROWS = (1, 2, 3, 5, 8, 12, 19, 32, 48, 77, 128, 197, 320, 512, 784, 1250, 2048)
_WIDTHS = (4, 8, 10, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_CHANNELS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_SIDES = (3, 4, 5, 7, 9, 11, 14, 18, 23, 28, 36, 45, 56, 72, 90, 112)
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


def operator_probes() -> Iterator[KernelCall]:
    """Yield operators that are not products, each on tensors of several sizes."""
    for count in _COUNTS:
        flat, side = torch.empty(count), max(2, math.isqrt(count) // 4)
        rows = torch.empty(max(1, count // 64), 64) if count >= 64 else torch.empty(1, count)
        image, width = torch.empty(1, 16, side, side), rows.shape[1]
        mask, places = torch.empty(rows.shape, dtype=torch.bool), torch.zeros(rows.shape[0], dtype=torch.int64)
        for function in _ELEMENT_WISE:
            yield from _calls(function, flat)
        for function in _ON_TWO:
            yield from _calls(function, flat, flat)
        for function in (*_ON_ROWS, nn.LayerNorm(width)):
            yield from _calls(function, rows)
        for function in _ON_IMAGES:
            yield from _calls(function, image)
        for function in (lambda x, m: x.masked_fill(m, -1.0), lambda x, m: torch.where(m, x, 0.0)):
            yield from _calls(function, rows, mask)
        yield from _calls(nn.Embedding(1000, width), places)
        yield from _calls(nn.EmbeddingBag(1000, width), places.reshape(-1, 1))
    for function in _VIEWS:
        yield from _calls(function, torch.empty(4, 4))


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
    lambda x: x.argmax(-1), lambda x: x.cumsum(-1), lambda x: F.rms_norm(x, x.shape[-1:]),
    lambda x: x.transpose(0, 1).contiguous(),
)  # fmt: skip
_ON_IMAGES: tuple[Callable[..., Any], ...] = (
    nn.BatchNorm2d(16).eval(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1),
    lambda x: F.pixel_shuffle(x, 2), lambda x: x.mean((2, 3)),
)  # fmt: skip
_VIEWS: tuple[Callable[..., Any], ...] = (
    lambda x: x.view(16), lambda x: x.t(), lambda x: x.unsqueeze(0), lambda x: x.transpose(0, 1), lambda x: x[0],
)  # fmt: skip

CHECKS: tuple[Callable[[], tuple[nn.Module, torch.Tensor]], ...] = (
    lambda: (_convnet(24, 3), torch.rand(1, 3, 48, 48)),
    lambda: (_convnet(64, 4), torch.rand(2, 3, 64, 64)),
    lambda: (_perceptron(48, 3), torch.rand(4, 48)),
    lambda: (_perceptron(900, 4), torch.rand(32, 900)),
    lambda: (nn.Sequential(nn.TransformerEncoderLayer(96, 4, 384)).train(False), torch.rand(40, 2, 96)),
    lambda: (nn.Sequential(nn.LSTM(40, 80)), torch.rand(24, 2, 40)),
)
"""Whole programs, which nothing is fitted to, to measure the errors of estimates."""


def _convnet(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def _perceptron(width: int, depth: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    return nn.Sequential(*layers)
