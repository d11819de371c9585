"""Kernels on symbolic sizes: each runs once for the same arguments; later writes and queries count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import fx
from fx.analysis.symbolic_shapes import symbolic_shapes


@pytest.fixture
def kernels_run(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the runs of the fake implementation of each kernel."""
    counts: Counter[str] = Counter()
    original: Any = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        counts[str(func)] += 1
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    return counts


def test_a_kernel_is_run_once_for_the_same_sizes(kernels_run: Counter[str]) -> None:
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
    report = symbolic_shapes(fx.symbolic_trace(nn.Sequential(*[block] * 10).eval()), ("batch", 8, "h", "w"))
    assert kernels_run["aten.convolution.default"] == kernels_run["aten.tanh.default"] == 1
    assert report.shape_of("output") == ("batch", 8, "h", "w")


def first_and_second(x: torch.Tensor, act: Callable[[torch.Tensor], Any]) -> tuple[Any, Any]:
    act(first := x.relu())
    return first, x.relu()


@pytest.mark.parametrize("act, first", [(lambda x: x.t_(), ("m", "n")), (lambda x: x.unsqueeze_(0), (1, "n", "m"))])
def test_resizing_a_result_does_not_change_later_shapes(act: Any, first: tuple[Any, ...]) -> None:
    report = symbolic_shapes(fx.symbolic_trace(lambda x: first_and_second(x, act)), ("n", "m"))
    assert report.shape_of("output") == first
    assert report.shape_of("relu_1") == ("n", "m")


@pytest.mark.parametrize(
    "first, second",
    [
        (lambda x: torch.sum(x, 0), lambda x: torch.sum(x, 1)),
        (lambda x: torch.sum(x, 0), lambda x: torch.sum(x, 0, True)),
        (lambda x: x.sum(0), lambda x: x.t().sum(0)),
        (lambda x: torch.exp(x), lambda x: torch.exp(x.t())),
        (lambda x: torch.exp(x), lambda x: torch.exp(x.double())),
        (lambda x: torch.zeros(x.shape), lambda x: torch.zeros(x.shape[::-1])),
        (lambda x: x.long() ** 2, lambda x: x.long() ** 2.0),
        (lambda x: torch.exp(x.t() @ x), lambda x: torch.exp((x.t() @ x).t())),
        (lambda x: torch.topk(x, 2)[1], lambda x: torch.topk(x, 2, 0)[1]),
        (lambda x: x[x > 0], lambda x: x[x > 0]),
    ],
)
def test_other_arguments_have_results_of_their_own(first: Any, second: Any) -> None:
    """Run together, two kernels have the sizes, strides and dtypes that each has alone."""

    def sizes(program: Any) -> list[Any]:
        report = symbolic_shapes(fx.symbolic_trace(program), ("n", 6))
        (output_tensors,) = (output_tensors for node, output_tensors in report.tensors.items() if node.op == "output")
        return [(tensor.shape, tensor.stride, tensor.dtype) for tensor in output_tensors]

    together = sizes(lambda x: (first(x), second(x)))
    apart = sizes(first) + sizes(second)
    assert [str(size).replace("u1", "u0") for size in together] == [str(size) for size in apart]


def test_results_know_their_memory_format() -> None:
    program = fx.symbolic_trace(lambda x: (x.relu(), x.relu(), x.relu()))
    symbolic_shapes(program, ("batch", 3, "h", "w"))
    nodes = [node for node in program.graph.nodes if node.op == "call_method"]
    assert [node.meta["tensor_meta"].memory_format for node in nodes] == [torch.contiguous_format] * 3


def test_constraints_of_a_kernel_are_reported_at_its_first_call() -> None:
    program = fx.symbolic_trace(lambda x, y: (torch.add(x, y), torch.add(x, y)))
    (constraint,) = symbolic_shapes(program, ("n", 4), ("m", 4), hints={"n": 8, "m": 8}).needed
    assert str(constraint.node) == "add"
