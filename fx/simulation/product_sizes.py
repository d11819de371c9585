"""The sizes of matrix products and convolutions, and how long products take by their sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from fx.analysis.kernel_calls import KernelCall, Operand

Kind: TypeAlias = Literal["matrix", "convolution", "small convolution", "depthwise", "attention", "recurrent"]
"""Kinds of products, which kernels of their own compute."""

_MATRIX = {"aten.mm": (0, 1), "aten.bmm": (0, 1), "aten.addmm": (1, 2), "aten.baddbmm": (1, 2), "aten.mv": (0, 1),
           "aten.addmv": (1, 2), "aten.dot": (0, 1), "aten._addmm_activation": (1, 2)}  # fmt: skip
_SLOPE = 0.2
"""How steep a trend is taken to be: halving a size may change the time of an operation by about this power of two."""
_GRADIENTS = frozenset({"aten.convolution_backward", "aten.mkldnn_rnn_layer_backward"})


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """One product by its sizes: rows by depth, times depth by columns, in each of some groups."""

    kind: Kind
    """What kind of product it is."""
    rows: float
    """Rows of a result: samples, or positions of a convolution's result."""
    columns: float
    """Columns of a result: channels of a group."""
    depth: float
    """Products that are added for one element of the result."""
    groups: float = 1
    """How many products of these sizes there are."""
    window: float = 1
    """Positions that a convolution looks at for one of its result."""
    step: float = 1
    """Positions of its operand for one of its result."""

    @property
    def features(self) -> tuple[float, ...]:
        """The sizes on a logarithmic scale, in the order of the fields."""
        sizes = (self.rows, self.columns, self.depth, self.groups, self.window, self.step)
        return tuple(math.log2(max(size, 1)) for size in sizes)


def product_sizes(call: KernelCall) -> ProductSizes | None:
    """Return the sizes of the product that a kernel computes; None for any other kernel.

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
    given = call.given
    if "attention" in name:
        query, key = given[:2]
        groups = math.prod(query.shape[:-2])
        return ProductSizes("attention", query.shape[-2], key.shape[-2], query.shape[-1], groups)
    if "rnn" in name:
        steps, samples = given[0].shape[0], math.prod(given[0].shape[1:-1])
        return ProductSizes("recurrent", samples, given[1].shape[0], given[1].shape[-1] + given[2].shape[-1], steps)
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
    looked_at = operand if transposed else result
    rows = looked_at.shape[0] * math.prod(looked_at.shape[2:])
    columns = weight.shape[0] / groups
    window = math.prod(weight.shape[2:])
    step = max(math.prod(operand.shape[2:]) / max(math.prod(result.shape[2:]), 1), 1)
    kind: Kind = "depthwise" if groups > 1 and weight.shape[1] == 1 else "convolution"
    if groups == 1 and operand.shape[0] == 1 and not transposed and min(weight.shape[2:], default=1) <= 3:
        # Where PyTorch does without oneDNN on a CPU (use_mkldnn in aten/src/ATen/native/Convolution.cpp).
        kind = "small convolution" if math.prod(operand.shape) <= 20480 else kind
    return ProductSizes(kind, rows, columns, weight.shape[1] * window, groups, window, step)


def _by_work(call: KernelCall) -> ProductSizes:
    """A product of which only the result and the number of multiply-adds are known."""
    shape: tuple[int, ...] = (1, *call.made[0].shape) if call.made else (1,)
    columns = shape[-1]
    rows = max(math.prod(shape) // max(columns, 1), 1)
    return ProductSizes("matrix", rows, columns, max(call.work.multiply_adds / max(math.prod(shape), 1), 1))


def is_gradient(call: KernelCall) -> bool:
    """Return whether a kernel computes several products: the gradients of one."""
    return call.name in _GRADIENTS or call.name.endswith("_backward")


@dataclass(frozen=True, slots=True)
class Surface:
    """A smooth quantity known at some points: a Gaussian process, which also knows how far off it may be.

    >>> surface = Surface.fit([((0.0,), 1.0), ((1.0,), 2.0), ((2.0,), 3.0)])
    >>> mean, spread = surface.at((1.5,))
    >>> 2.2 < mean < 2.8, spread < surface.at((9.0,))[1]
    (True, True)
    """

    points: tuple[tuple[float, ...], ...]
    """Where it is known."""
    values: tuple[float, ...]
    """What it is there."""
    reach: tuple[float, ...]
    """How far along each axis values are alike."""
    height: float
    """Standard deviation of the values around their trend."""
    noise: float
    """Standard deviation of one value when it is measured again."""

    @classmethod
    def fit(cls, known: Sequence[tuple[Sequence[float], float]]) -> Surface:
        """Fit to points with their values; of some reaches and heights the most likely ones are taken."""
        points = tuple(tuple(map(float, point)) for point, _ in known)
        values = tuple(float(value) for _, value in known)
        axes = list(zip(*points, strict=True))
        reach = [max(max(axis) - min(axis), 1.0) for axis in axes]
        spread = max(float(torch.tensor(values, dtype=torch.float64).std(correction=0)), 1e-3)
        best = cls(points, values, tuple(reach), spread, 0.05)
        for _ in range(2 if len(points) > 2 else 0):
            for axis in range(len(reach)):
                before, after = best.reach[:axis], best.reach[axis + 1 :]
                tried = [
                    cls(points, values, (*before, reach[axis] * factor, *after), height, noise)
                    for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
                    for height in {best.height, spread}
                    for noise in (0.03, 0.08, 0.15)
                ]
                best = max((best, *tried), key=lambda one: one._likelihood)
        return best

    def at(self, point: Sequence[float]) -> tuple[float, float]:
        """The expected value at ``point``, and its standard deviation."""
        place = torch.tensor([list(map(float, point))], dtype=torch.float64)
        factor, weights, trend = _solved(self)
        near = self._alike(place, _as_tensor(self.points))
        mean = float((_with_one(place) @ trend + near @ weights).item())
        part = torch.linalg.solve_triangular(factor, near.T, upper=False)
        left = self.height**2 + self.noise**2 - float((part**2).sum())
        return mean, math.sqrt(max(left, self.noise**2))

    def leave_out(self) -> list[float]:
        """For each point, how far its value is from what the others predict."""
        factor, weights, _ = _solved(self)
        inverse = torch.cholesky_inverse(factor)
        return (weights.squeeze(1) / inverse.diagonal()).tolist()

    def _alike(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        reach = torch.tensor(self.reach, dtype=torch.float64)
        distance = torch.cdist(first / reach, second / reach)
        root = math.sqrt(3.0) * distance
        return self.height**2 * (1 + root) * torch.exp(-root)  # Matérn 3/2: kernels change with kinks, not smoothly

    @property
    def _likelihood(self) -> float:
        factor, weights, trend = _solved(self)
        left = _as_tensor(self.values).unsqueeze(1) - _with_one(_as_tensor(self.points)) @ trend
        return -0.5 * float((left.T @ weights).item()) - float(factor.diagonal().log().sum())


@functools.lru_cache(maxsize=256)
def _solved(surface: Surface) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The factor of the covariance of the known points, the weights of their values, and a linear trend."""
    points = _as_tensor(surface.points)
    values = _as_tensor(surface.values).unsqueeze(1)
    count = len(surface.points)
    covariance = surface._alike(points, points) + surface.noise**2 * torch.eye(count, dtype=torch.float64)
    factor = torch.linalg.cholesky(covariance)
    basis = _with_one(points)
    solved = torch.cholesky_solve(basis, factor)
    ridge = torch.eye(basis.shape[1], dtype=torch.float64) / _SLOPE**2
    ridge[0, 0] = 1e-6
    trend = torch.linalg.solve(basis.T @ solved + ridge, solved.T @ values)
    weights = torch.cholesky_solve(values - basis @ trend, factor)
    return factor, weights, trend


def _as_tensor(rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _with_one(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.ones(len(points), 1, dtype=torch.float64), points], dim=1)
