"""Calls of kernels: what they are given, and from how far away; sizes of products; smooth surfaces over them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.analysis.kernel_calls import record_calls
from fx.analysis.kernel_run import KernelRun
from fx.analysis.product_sizes import ProductSizes, Surface, product_sizes


def test_a_view_of_a_parameter_is_the_parameter() -> None:
    calls = record_calls(fx.symbolic_trace(nn.Linear(4, 8)), torch.empty(2, 4)).calls
    assert [argument.is_state for argument in calls[-1].given] == [True, False, True]


def test_copies_that_are_made_of_a_module_are_not_calls_of_the_program() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [torch.ones(4)]  # which is copied as a list is, element by element

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scales[0]

    class Leaves(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    model = nn.Sequential(Scaling())
    program = fx.GraphModule(model, Leaves().trace(model))
    calls: list[str] = []
    KernelRun(program, lambda kernel, *_: calls.append(str(kernel))).run(torch.ones(2, 4))
    assert calls == ["aten.mul.Tensor"]


def test_calls_of_the_same_sizes_have_one_key_and_others_do_not() -> None:
    program = fx.symbolic_trace(lambda x: (torch.relu(torch.relu(x)), torch.relu(x[:2])))
    first, second, _, third = record_calls(program, torch.empty(4, 3)).calls
    assert first.key == second.key != third.key


def test_keys_tell_strides_dtypes_and_other_arguments_apart() -> None:
    program = fx.symbolic_trace(lambda x: (x.sum(0), x.t().sum(0), x.sum(1), x.double().sum(0)))
    keys = [call.key for call in record_calls(program, torch.empty(3, 3)).calls if call.name == "aten.sum"]
    assert len(set(keys)) == 4


def test_distance_is_what_was_touched_since_the_last_use() -> None:
    program = fx.symbolic_trace(lambda x: (torch.neg(x), torch.relu(x)))
    neg, relu = record_calls(program, torch.empty(250)).calls
    assert [(access.size, access.distance) for access in neg.touched] == [(1000, 4000), (1000, 1000)]
    assert [(access.size, access.distance) for access in relu.touched] == [(1000, 2000), (1000, 1000)]


def test_an_expanded_tensor_counts_once() -> None:
    program = fx.symbolic_trace(lambda x: x.expand(100, 10) + 1)
    assert record_calls(program, torch.empty(1, 10)).calls[-1].given[0].size == 40


def test_the_gradients_calls_belong_to_the_nodes_of_the_forward_run() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    calls = record_calls(program, torch.empty(2, 4), backward=True)
    backward = [(str(call.node), call.name) for call in calls.calls if call.is_backward and call.cost is not None]
    assert ("_1", "aten.threshold_backward") in backward
    assert ("_0", "aten.mm") in backward


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


def test_a_surface_goes_through_what_it_knows_and_is_unsure_far_away() -> None:
    points = [((x, y), math.sin(x) + y) for x in (0.0, 1.0, 2.0, 3.0) for y in (0.0, 1.0, 2.0)]
    surface = Surface.fit(points)
    assert all(abs(surface.at(point)[0] - value) < 0.15 for point, value in points)
    assert abs(surface.at((1.5, 0.5))[0] - (math.sin(1.5) + 0.5)) < 0.2
    assert surface.at((30.0, 0.5))[1] > 2 * surface.at((1.5, 0.5))[1]


def test_leaving_points_out_is_what_fitting_without_them_gives() -> None:
    points = [((float(x),), math.sqrt(x)) for x in range(8)]
    surface = Surface.fit(points)
    others = Surface(
        surface.points[:3] + surface.points[4:],
        surface.values[:3] + surface.values[4:],
        surface.reach,
        surface.height,
        surface.noise,
    )
    difference = surface.leave_out()[3]
    assert abs(difference - (points[3][1] - others.at(points[3][0])[0])) < 0.05
