"""Roots that are neither modules nor plain functions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import fx
from fx.errors import GuardError


def scaled(x: Any, w: Any, scale: float = 1.0) -> Any:
    return x * w * scale


class Adds:
    def __init__(self) -> None:
        self.number = 3

    def __call__(self, x: Any, mask: Any = None, *, sign: int = 1) -> Any:
        y = x + self.number * sign
        return y if mask is None else y * mask

    def twice(self, x: Any) -> Any:
        return x + 2 * self.number


ONE = torch.ones(2)


def test_a_partial_keeps_its_keyword_arguments_as_defaults() -> None:
    traced = fx.symbolic_trace(functools.partial(scaled, scale=2.0))
    assert torch.equal(traced(ONE, ONE), 2 * ONE)
    assert torch.equal(traced(ONE, ONE, scale=3.0), 3 * ONE)


def test_positional_arguments_of_a_partial_are_no_inputs() -> None:
    traced = fx.symbolic_trace(functools.partial(scaled, 2 * ONE))
    assert torch.equal(traced(ONE, 2.0), 4 * ONE)


def test_an_object_is_captured_as_its_call_method() -> None:
    traced = fx.symbolic_trace(Adds())
    assert torch.equal(traced(ONE, sign=-1), -2 * ONE)
    with pytest.raises(GuardError, match="captured where mask is not given"):
        traced(ONE, 2 * ONE)
    program = fx.symbolic_trace(Adds(), concrete_args={"mask": fx.PH})
    assert torch.equal(program(ONE, 2 * ONE, sign=-1), -4 * ONE)


def test_a_bound_method_is_captured_with_its_object() -> None:
    assert torch.equal(fx.symbolic_trace(Adds().twice)(ONE), 7 * ONE)


def test_an_object_that_takes_any_number_of_arguments_is_refused() -> None:
    class Takes:
        def __call__(self, *xs: Any) -> Any:
            return xs[0]

    with pytest.raises(fx.TraceError, match="Expected FunctionType"):
        fx.symbolic_trace(Takes())
