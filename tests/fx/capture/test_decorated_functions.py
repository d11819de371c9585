"""Decorators of functions whose starred and keyword-only parameters become inputs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import fx
from fx.errors import GuardError, TraceError


def asking(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("power", 2)
        return function(*args, **kwargs)

    return inner


class Calling:
    """A decorator that keeps the function in an attribute."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@asking
def powers(x: torch.Tensor, *, power: int = 3) -> torch.Tensor:
    return x**power


def test_a_decorator_that_asks_for_keywords_is_refused_by_its_line() -> None:
    with pytest.raises(TraceError) as caught:
        fx.symbolic_trace(powers)
    assert str(caught.value).startswith("a decorator of powers asks what is given by keyword\n")
    assert "test_decorated_functions.py:18, in asking.inner" in str(caught.value).replace(".<locals>", "")
    assert "example_inputs" in str(caught.value)


def test_with_example_inputs_it_is_given_what_they_have_and_the_program_checks_that() -> None:
    x = torch.ones(2) * 3
    program = fx.symbolic_trace(powers, example_inputs=(x,))
    assert torch.equal(program(x), powers(x)) and torch.equal(program(x), x**2)
    with pytest.raises(GuardError, match="captured with power=3, which a decorator asks for"):
        program(x, power=4)
    given = fx.symbolic_trace(powers, example_inputs={"x": x, "power": 4})
    assert torch.equal(given(x, power=4), x**4)


def test_a_decorator_that_hides_what_it_calls_is_refused() -> None:
    @Calling
    def hidden(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return x * 2

    def outer(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return hidden(x, *others)

    functools.update_wrapper(outer, hidden)
    with pytest.raises(TraceError, match=r"a decorator of .* cannot be captured"):
        fx.symbolic_trace(outer)


def test_the_function_that_others_call_is_left_as_it_is() -> None:
    before = powers.__wrapped__.__code__
    fx.symbolic_trace(powers, example_inputs=(torch.ones(2),))
    assert powers.__wrapped__.__code__ is before and torch.equal(powers(torch.ones(2) * 2), torch.ones(2) * 4)


def test_a_decorator_may_name_a_variable_that_has_no_value_yet() -> None:
    def naming(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if args else later

        if functools is None:
            later = 1
        return inner

    @naming
    def scaled(x: torch.Tensor, *, scale: int = 2) -> torch.Tensor:
        return x * scale

    assert fx.symbolic_trace(scaled)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_decorator_that_takes_no_keywords_is_refused_by_its_line() -> None:
    def by_place(function: Any) -> Any:
        @functools.wraps(function)
        def inner(x: Any, *rest: Any) -> Any:
            return function(x, *rest) * 2

        return inner

    @by_place
    def doubled(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(TraceError, match=r"doubled cannot be captured: got an unexpected keyword.*") as caught:
        fx.symbolic_trace(doubled)
    assert "test_decorated_functions.py" in str(caught.value) and "**kwargs" in str(caught.value)
