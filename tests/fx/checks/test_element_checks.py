"""Checks that a value is one of several, and that tuples are equal.

PYTEST_DONT_REWRITE: the programs have assert statements themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx


def one_of(x: Any) -> Any:
    assert x.dim() in (2, 3), f"got {x.dim()} dimensions"
    return x


def one_of_a_set(x: Any) -> Any:
    assert x.ndim in {2, 3}
    return x


def one_of_names(x: Any) -> Any:
    kinds = (torch.float32, torch.float16)
    if x.dtype not in kinds:
        raise TypeError(f"dtype {x.dtype}")
    return x


RANKS = (2, 3)


def one_of_a_global(x: Any) -> Any:
    assert x.dim() in RANKS
    return x


def none_of(x: Any) -> Any:
    if x.dim() in (0, 1):
        raise ValueError("too few dimensions")
    return x


def none_of_a_set(x: Any) -> Any:
    assert x.dim() not in {0, 1}
    return x


def equal_tuples(x: Any) -> Any:
    assert (x.size(0), x.size(-1)) == (2, 3), "another shape"
    return x


def unequal_tuples(x: Any) -> Any:
    if (x.size(0), x.size(-1)) != (2, 3):
        raise ValueError("another shape")
    return x


BAD = {one_of_names: torch.ones(2, 3, dtype=torch.int64), equal_tuples: torch.ones(2, 4),
       unequal_tuples: torch.ones(3, 3)}  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [one_of, one_of_a_set, one_of_names, one_of_a_global, none_of, none_of_a_set, equal_tuples, unequal_tuples],
)
def test_a_comparison_that_asks_elements_is_recorded_as_a_check(program: Any) -> None:
    captured = fx.symbolic_trace(program)
    for shape in ((2, 3), (2, 1, 3)):
        assert captured(torch.ones(shape)).shape == shape
    with pytest.raises(AssertionError):
        captured(BAD.get(program, torch.ones(1)))


def test_each_of_the_values_passes_and_the_message_is_that_of_the_user() -> None:
    captured = fx.symbolic_trace(one_of)
    with pytest.raises(AssertionError, match="got 4 dimensions"):
        captured(torch.ones(1, 1, 1, 1))


def test_a_branch_on_membership_is_refused() -> None:
    def program(x: Any) -> Any:
        return x if x.dim() in (2, 3) else -x

    with pytest.raises(fx.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(program)


def test_a_comparison_that_raises_where_tuples_are_equal_is_refused() -> None:
    def program(x: Any) -> Any:
        if (x.size(0), x.size(1)) == (2, 3):
            raise ValueError("this shape")
        return x

    with pytest.raises(fx.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(program)
