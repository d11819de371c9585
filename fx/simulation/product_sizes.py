"""The sizes of matrix products and convolutions, and a model of their times by sizes."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from fx.analysis.kernel_calls import KernelCall, Operand

Kind: TypeAlias = Literal["matrix", "convolution", "small convolution", "depthwise", "attention", "recurrent"]
"""Kinds of products, which different kernels compute."""

_MATRIX = {"aten.mm": (0, 1), "aten.bmm": (0, 1), "aten.addmm": (1, 2), "aten.baddbmm": (1, 2), "aten.mv": (0, 1),
           "aten.addmv": (1, 2), "aten.dot": (0, 1), "aten._addmm_activation": (1, 2)}  # fmt: skip
_NEAREST = 4
"""The number of nearest points that correct a surface."""
_SOFT = 0.1
"""Squared distance below which points have about the same weight: repeated measurements of a time differ."""
_HOLDS_90 = 1.645
"""Standard deviations on each side of the mean that contain 90 % of a normal distribution."""
_LEAST_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The sizes of a product: (rows, depth) by (depth, columns), in each group."""

    kind: Kind
    """The kind of product."""
    rows: float
    """Rows of a result: samples, or positions of a convolution's result."""
    columns: float
    """Columns of a result: channels of a group."""
    depth: float
    """Multiply-adds for one element of the result."""
    groups: float = 1
    """The number of products of these sizes."""
    window: float = 1
    """Positions in the window of a convolution."""
    step: float = 1
    """Positions of a convolution's operand per position of its result."""

    @property
    def features(self) -> tuple[float, ...]:
        """The sizes on a logarithmic scale, in the order of the fields."""
        sizes = (self.rows, self.columns, self.depth, self.groups, self.window, self.step)
        return tuple(math.log2(max(size, 1)) for size in sizes)


def product_sizes(call: KernelCall) -> ProductSizes | None:
    """Return the sizes of the product that a kernel computes, or None if it computes no product.

    >>> import fx
    >>> from fx.analysis.kernel_calls import record_calls
    >>> calls = record_calls(fx.symbolic_trace(torch.nn.Linear(100, 10)), torch.ones(8, 100)).calls
    >>> product_sizes(calls[1])
    ProductSizes(kind='matrix', rows=8, columns=10, depth=100, groups=1, window=1, step=1)
    """
    if not call.work.multiply_adds:
        return None
    name = call.name
    if name in ("aten.convolution", "aten._convolution", "aten.convolution_backward", "aten.mkldnn_convolution"):
        return _convolution(call, name == "aten.convolution_backward")
    if name in _MATRIX:
        first, second = (call.args[place] for place in _MATRIX[name])
        return _matrix(first.shape, second.shape)
    operands = call.given
    if "attention" in name:
        query, key = operands[:2]
        groups = math.prod(query.shape[:-2])
        return ProductSizes("attention", query.shape[-2], key.shape[-2], query.shape[-1], groups)
    if "rnn" in name:
        steps, samples = operands[0].shape[0], math.prod(operands[0].shape[1:-1])
        return ProductSizes(
            "recurrent", samples, operands[1].shape[0], operands[1].shape[-1] + operands[2].shape[-1], steps
        )
    return _by_work(call)


def _matrix(first: tuple[int, ...], second: tuple[int, ...]) -> ProductSizes:
    *groups, rows, depth = (1, 1, *first)[-max(len(first), 2) :]
    columns = second[-1] if len(second) >= 2 else 1
    return ProductSizes("matrix", rows, columns, depth, math.prod(groups))


def _convolution(call: KernelCall, is_gradient: bool) -> ProductSizes:
    places = (1, 2) if is_gradient else (0, 1)
    operand, weight = (call.args[place] for place in places)
    result: Operand = call.args[0] if is_gradient else call.made[0]
    transposed, groups = bool(call.args[7 if is_gradient else 6]), int(call.args[9 if is_gradient else 8])
    positions = operand if transposed else result
    rows = positions.shape[0] * math.prod(positions.shape[2:])
    columns = weight.shape[0] / groups
    window = math.prod(weight.shape[2:])
    step = max(math.prod(operand.shape[2:]) / max(math.prod(result.shape[2:]), 1), 1)
    kind: Kind = "depthwise" if groups > 1 and weight.shape[1] == 1 else "convolution"
    if groups == 1 and operand.shape[0] == 1 and not transposed and min(weight.shape[2:], default=1) <= 3:
        # PyTorch does not use oneDNN for these on a CPU (use_mkldnn in aten/src/ATen/native/Convolution.cpp).
        kind = "small convolution" if math.prod(operand.shape) <= 20480 else kind
    return ProductSizes(kind, rows, columns, weight.shape[1] * window, groups, window, step)


def _by_work(call: KernelCall) -> ProductSizes:
    """Return the sizes of a product from its result and its number of multiply-adds alone."""
    shape: tuple[int, ...] = (1, *call.made[0].shape) if call.made else (1,)
    columns = shape[-1]
    rows = max(math.prod(shape) // max(columns, 1), 1)
    return ProductSizes("matrix", rows, columns, max(call.work.multiply_adds / max(math.prod(shape), 1), 1))


@dataclass(frozen=True, slots=True)
class Surface:
    """A quantity interpolated between points: a plane fitted to all, corrected by the residuals of the nearest ones.

    >>> surface = Surface.fit([((0.0,), 1.0), ((1.0,), 2.0), ((2.0,), 3.0)])
    >>> mean, spread = surface.at((1.5,))
    >>> 2.2 < mean < 2.8, spread < surface.at((9.0,))[1]
    (True, True)
    """

    points: tuple[tuple[float, ...], ...]
    """The points at which the quantity is known."""
    values: tuple[float, ...]
    """The values at these points."""
    plane: tuple[float, ...]
    """The value of the plane at the origin, and its slope along each axis."""
    spread: float = 1.0
    """Standard deviation of a value from the prediction of the other points."""
    reach: float = 1.0
    """Median distance from a point to its nearest neighbour."""

    @classmethod
    def fit(cls, known: Sequence[tuple[Sequence[float], float]]) -> Surface:
        """Fit a surface to points with their values."""
        surface = cls._through(
            tuple(tuple(map(float, point)) for point, _ in known), tuple(value for _, value in known)
        )
        if len(known) < 2:
            return surface
        off = sorted(map(abs, surface.leave_out()))
        nearest = (sorted(math.dist(first, second) for second in surface.points)[1] for first in surface.points)
        spread = off[math.ceil(0.9 * len(off)) - 1] / _HOLDS_90
        return replace(surface, spread=max(spread, _LEAST_SPREAD), reach=max(statistics.median(nearest), _SOFT))

    @classmethod
    def _through(cls, points: tuple[tuple[float, ...], ...], values: tuple[float, ...]) -> Surface:
        """Fit the plane alone; a ridge penalty keeps slopes small that few points support."""
        basis = torch.tensor([[1.0, *point] for point in points], dtype=torch.float64)
        ridge = torch.eye(basis.shape[1], dtype=torch.float64)
        ridge[0, 0] = 0.0
        plane = torch.linalg.solve(basis.T @ basis + ridge, basis.T @ torch.tensor(values, dtype=torch.float64))
        return cls(points, values, tuple(plane.tolist()))

    def at(self, point: Sequence[float]) -> tuple[float, float]:
        """Return the expected value at ``point``, and its standard deviation."""
        near = heapq.nsmallest(
            _NEAREST,
            (
                (math.dist(point, other), value - self._on_plane(other))
                for other, value in zip(self.points, self.values, strict=True)
            ),
        )
        weights = [1 / (distance**2 + _SOFT) for distance, _ in near]
        off = sum(weight * off for weight, (_, off) in zip(weights, near, strict=True)) / sum(weights)
        return self._on_plane(point) + off, self.spread * max(math.sqrt(near[0][0] / self.reach), 0.5)

    def _on_plane(self, point: Sequence[float]) -> float:
        return self.plane[0] + sum(slope * size for slope, size in zip(self.plane[1:], point, strict=True))

    def leave_out(self) -> list[float]:
        """Return for each point the difference of its value from the prediction of the other points."""
        points, values = self.points, self.values
        others = (
            Surface._through(points[:place] + points[place + 1 :], values[:place] + values[place + 1 :])
            for place in range(len(points))
        )
        return [value - other.at(point)[0] for point, value, other in zip(points, values, others, strict=True)]
