"""Decorators of functions whose starred and keyword-only parameters become inputs."""

from __future__ import annotations

import functools
import re
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
    assert str(caught.value).startswith("a decorator of powers queries its keyword arguments\n")
    assert re.search(
        r"test_decorated_functions.py:\d+, in (asking\.(<locals>\.)?)?inner:  kwargs\.setdefault", str(caught.value)
    )
    assert "example_inputs" in str(caught.value)


def test_a_decorator_gets_the_values_of_example_inputs_and_the_program_checks_them() -> None:
    x = torch.ones(2) * 3
    program = fx.symbolic_trace(powers, example_inputs=(x,))
    assert torch.equal(program(x), powers(x)) and torch.equal(program(x), x**2)
    with pytest.raises(GuardError, match="captured with power=3, which a decorator queries"):
        program(x, power=4)
    captured = fx.symbolic_trace(powers, example_inputs={"x": x, "power": 4})
    assert torch.equal(captured(x, power=4), x**4)


def test_a_decorator_that_hides_its_function_is_refused() -> None:
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


def _held_in_attribute(function: Any) -> Any:
    return Calling(function)


@_held_in_attribute
def held(x: torch.Tensor, *, scale: int = 2) -> torch.Tensor:
    return x * scale


def test_an_object_that_keeps_its_function_in_an_attribute_is_captured_and_unchanged() -> None:
    before = held.function
    program = fx.symbolic_trace(held)
    assert program(torch.ones(2)).tolist() == [2.0, 2.0] and program(torch.ones(2), scale=3).tolist() == [3.0, 3.0]
    assert held.function is before and held(torch.ones(1)).item() == 2.0


def _times(function: Any, factor: int, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs) * factor


class ByPartial(torch.nn.Module):
    pass


def _plain(self: Any, x: torch.Tensor, *, scale: int = 2) -> torch.Tensor:
    return x * scale


def _handed_on(function: Any) -> Any:
    partial = functools.update_wrapper(functools.partial(_times, function, 3), function)

    @functools.wraps(partial)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return partial(*args, **kwargs)

    return inner


ByPartial.forward = _handed_on(_plain)


def test_a_partial_among_decorators_is_captured() -> None:
    program = fx.symbolic_trace(ByPartial())
    assert program(torch.ones(2)).tolist() == [6.0, 6.0] and program(torch.ones(2), scale=1).tolist() == [3.0, 3.0]


@functools.cache
def _cached(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    "root, where, why, remedy",
    [
        (_cached, r"test_decorated_functions.py:\d+, in _cached", "caches results by their arg", r"__wrapped__\(x\)"),
        (functools.partial(_times, torch.relu, 2), r"\d+, in _times", "any number of arg", r"callable_object\(x\)"),
    ],
)
def test_a_root_that_cannot_be_traced_is_refused_by_its_line(root: Any, where: str, why: str, remedy: str) -> None:
    with pytest.raises(TraceError, match=rf"(?s)Expected FunctionType.*where .*{where}.*why .*{why}.*try .*{remedy}"):
        fx.symbolic_trace(root)


class Static(torch.nn.Module):
    @staticmethod
    def forward(x: torch.Tensor, scale: int = 2) -> torch.Tensor:
        return x * scale


class OfClass(torch.nn.Module):
    scale = 3

    @classmethod
    def forward(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.scale


class StaticStarred(torch.nn.Module):
    @staticmethod
    def forward(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return x


def test_a_forward_that_is_static_or_of_the_class_is_captured() -> None:
    static = fx.symbolic_trace(Static())
    assert static(torch.ones(1)).item() == 2.0 and static(torch.ones(1), scale=5).item() == 5.0
    assert fx.symbolic_trace(OfClass())(torch.ones(1)).item() == 3.0


def test_a_static_forward_of_any_number_of_arguments_is_refused_by_its_line() -> None:
    expected = (
        r"(?s)cannot trace 'forward' of a StaticStarred.*test_decorated_functions.py:\d+, in forward.*try .*def forward"
    )
    with pytest.raises(TraceError, match=expected):
        fx.symbolic_trace(StaticStarred())


def test_questions_are_answered_under_a_decorator_from_another_file() -> None:
    namespace: dict[str, Any] = {"functools": functools}
    text = "def handed_on(function):\n    @functools.wraps(function)\n    def wrapper(*args, **kwargs):\n"
    exec(f"{text}        return function(*args, **kwargs)\n    return wrapper", namespace)

    def program(x: Any) -> Any:
        return x * 2 if isinstance(x, torch.Tensor) and len(dir(x)) > 100 else x * 3

    decorated = namespace["handed_on"](namespace["handed_on"](program))
    assert fx.symbolic_trace(decorated)(torch.ones(1)).item() == 2

    class Model(torch.nn.Module):
        forward = namespace["handed_on"](lambda self, x: decorated(x) + max(x.shape[0], 1))

    assert fx.symbolic_trace(torch.nn.Sequential(Model()))(torch.ones(2)).tolist() == [4, 4]
