"""Shapes that a call spreads: ``x.view(*x.shape[:-1], 2, 3)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx


class Sized:
    """An object whose method has the name of a tensor's."""

    def view(self, *sizes: Any) -> int:
        return len(sizes)


def counts(*sizes: Any) -> int:
    return len(sizes)


def views(x: Any, *sizes: Any) -> Any:
    return x.view(*sizes)


FRONT, BACK = (lambda x: x.view(*x.shape[:-1], 2, 3)), (lambda x: x.reshape(-1, *x.shape[2:]))


@pytest.mark.parametrize(
    "program",
    [
        FRONT,
        BACK,
        lambda x: x.view((*x.shape[:-1], 2, 3)),
        lambda x: x.new_zeros([*x.shape[:-1], 1 + len(x.shape)], dtype=x.dtype),
        lambda x: torch.ones(*x.shape),
        lambda x: torch.zeros(*x.shape[:-1], 3, dtype=torch.int64),
        lambda x: x.expand(2, *x.shape),
        lambda x: x.unsqueeze(0).repeat(3, *x.shape),
        lambda x: x.reshape(*x.shape[:-1], *x.shape[-1:]),
        lambda x: torch.full([*x.shape], 2.0),
        lambda x: views(x, 4, -1),
    ],
)
def test_as_many_sizes_are_spread_as_the_shape_has_when_the_program_runs(program: Callable[..., Any]) -> None:
    traced = fx.symbolic_trace(program)
    for shape in ((2, 6), (2, 4, 6), (2, 2, 2, 6)):
        x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        assert torch.equal(traced(x), program(x))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * counts(*x.shape),
        lambda x: x * counts(3, *x.shape[1:]),
        lambda x: x * Sized().view(*x.shape),
        lambda x: views(x, *x.shape),
        lambda x: x * len([*x.shape, 1]),
        lambda x: x * [*x.shape, 1][1],
        lambda x: x * max([*x.shape, 1]),
        lambda x: torch.add(*x.shape),
        lambda x: x.sum(*x.shape[:1][1:]),
        lambda x: (*x.shape, x),
        lambda x: x.view([1, *[2, *x.shape]]),
        lambda x: x.view(counts(*x.shape), -1),
    ],
)
def test_sizes_that_something_else_gets_are_refused_by_their_line(program: Callable[..., Any]) -> None:
    with pytest.raises(fx.TraceError, match=r"Proxy object cannot be iterated\n *where .*test_spread_shapes"):
        fx.symbolic_trace(program)


def test_a_program_that_catches_the_refusal_is_refused() -> None:
    def program(x: Any) -> Any:
        try:
            return x.softmax(*x.shape[1:])
        except Exception:
            return x

    with pytest.raises(fx.TraceError, match="Proxy object cannot be iterated"):
        fx.symbolic_trace(program)


def test_a_program_that_spreads_sizes_is_captured_again() -> None:
    again = fx.symbolic_trace(fx.symbolic_trace(FRONT))
    assert again(torch.ones(4, 5, 6)).shape == (4, 5, 2, 3)


def heads(x: Any) -> Any:
    b, n, _, h = *x.shape, 2
    return x.reshape(b, n, h, -1)


def names_behind(x: Any) -> Any:
    h, k, *_ = 2, *x.shape
    return x * h + k


def heads_before(x: Any) -> Any:
    h, b, n, c = [2, *x.shape]
    return x.reshape(b, n * c, 1) * h


@pytest.mark.parametrize("program", [heads, heads_before])
def test_as_many_sizes_are_taken_apart_as_there_are_names_left(program: Callable[..., Any]) -> None:
    traced = fx.symbolic_trace(program)
    for shape in ((2, 3, 4), (5, 1, 6)):
        x = torch.rand(shape)
        assert torch.equal(traced(x), program(x))


def test_another_number_of_sizes_than_names_is_refused_when_the_program_runs() -> None:
    traced = fx.symbolic_trace(heads)
    with pytest.raises(fx.GuardError, match=r"captured for 3 elements: .*b, n, _, h = "):
        traced(torch.rand(2, 4))


def names_for_two(x: Any) -> Any:
    first, _, _, last = *x.shape, *x.shape
    return x * first * last


@pytest.mark.parametrize(
    "program",
    [
        names_behind,
        names_for_two,
        lambda x: x * len([1, *x.shape]),
        lambda x: sum([1, *x.shape, *x.shape][:2]),
    ],
)
def test_sizes_are_refused_where_not_only_names_decide_how_many(program: Callable[..., Any]) -> None:
    with pytest.raises(fx.TraceError, match="Proxy object cannot be iterated"):
        fx.symbolic_trace(program)


def first_and_last(x: Any) -> Any:
    first, *_, last = x.unbind(0)
    return first + last


def last_alone(x: Any) -> Any:
    *_, last = x.shape
    return x.reshape(-1, last)


def first_alone(x: Any) -> Any:
    first, *_ = x.shape
    return x.reshape(first, -1)


@pytest.mark.parametrize("program", [first_and_last, last_alone, first_alone])
def test_the_ends_of_an_unpacked_shape_are_used_if_the_middle_is_unread(program: Callable[..., Any]) -> None:
    traced = fx.symbolic_trace(program)
    for shape in ((2, 6), (3, 4, 6)):
        x = torch.rand(shape)
        assert torch.equal(traced(x), program(x))


def test_too_few_elements_for_both_ends_are_refused_when_the_program_runs() -> None:
    with pytest.raises(AssertionError, match=r"not enough values to unpack \(expected at least 2\): .*first, \*_"):
        fx.symbolic_trace(first_and_last)(torch.rand(1, 2))


def read_by_a_function(x: Any) -> Any:
    first, *rest = x.shape

    def inner() -> Any:
        return x * first * len(rest)

    return inner()


def deleted(x: Any) -> Any:
    first, *rest = x.shape
    del rest
    return x * first


@pytest.mark.parametrize("program", [read_by_a_function, deleted])
def test_an_unpacked_shape_is_refused_if_its_middle_may_be_read(program: Callable[..., Any]) -> None:
    with pytest.raises(fx.TraceError, match="Proxy object cannot be iterated"):
        fx.symbolic_trace(program)
