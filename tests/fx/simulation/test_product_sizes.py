"""Sizes of products, and surfaces over them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.analysis.kernel_calls import record_calls
from fx.simulation.product_sizes import ProductSizes, Surface, product_sizes


@pytest.mark.parametrize(
    "function, shapes, expected",
    [
        (
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            [(2, 8, 32, 32)],
            ProductSizes("convolution", rows=2 * 16 * 16, columns=16, depth=72, groups=1, window=9, step=4),
        ),
        (nn.Conv2d(8, 16, 1, groups=2), [(1, 8, 4, 4)], ProductSizes("convolution", 16, columns=8, depth=4, groups=2)),
        (nn.Conv2d(8, 8, 3, groups=8), [(1, 8, 4, 4)], ProductSizes("depthwise", 4, 1, 9, groups=8, window=9, step=4)),
        (lambda x, y: torch.bmm(x, y), [(6, 5, 4), (6, 4, 3)], ProductSizes("matrix", 5, columns=3, depth=4, groups=6)),
    ],
    ids=["over its window", "groups are products", "single channels are depthwise", "a batch is groups"],
)
def test_convolutions_and_batches_are_products(function: Any, shapes: Any, expected: ProductSizes) -> None:
    calls = record_calls(fx.symbolic_trace(function), *map(torch.empty, shapes)).calls
    assert next(sizes for call in calls if (sizes := product_sizes(call)) is not None) == expected


def test_a_surface_fits_its_points_and_is_uncertain_far_away() -> None:
    points = [((x, y), math.sin(x) + y) for x in (0.0, 1.0, 2.0, 3.0) for y in (0.0, 1.0, 2.0)]
    surface = Surface.fit(points)
    assert all(abs(surface.at(point)[0] - value) < 0.15 for point, value in points)
    assert abs(surface.at((1.5, 0.5))[0] - (math.sin(1.5) + 0.5)) < 0.2
    assert surface.at((30.0, 0.5))[1] > 2 * surface.at((1.5, 0.5))[1]


def test_leave_one_out_equals_a_fit_without_the_point() -> None:
    points = [((float(x),), math.sqrt(x)) for x in range(8)]
    others = Surface.fit(points[:3] + points[4:])
    assert Surface.fit(points).leave_out()[3] == pytest.approx(points[3][1] - others.at(points[3][0])[0])


def test_nine_in_ten_points_are_within_the_spread_that_the_others_give_them() -> None:
    points = [((float(x), float(y)), math.sin(3 * x) + y) for x in range(8) for y in range(8)]
    surface = Surface.fit(points)
    assert sum(abs(off) <= 1.65 * surface.spread for off in surface.leave_out()) >= 0.9 * len(points)
