"""Recorded checks: branches on traced values that only raise on one side."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from building import WithoutLeaves
from programs_with_checks import Compound

import fx
from fx.checks.recognition import pending_check


class Asking:
    """Remembers what was decided about the frame that asked for its truth value."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.check: Any = None

    def __bool__(self) -> bool:
        self.check = pending_check(sys._getframe(1))
        return self.answer


def decided(function: Callable[[Any], Any], answer: bool) -> Any:
    asking = Asking(answer)
    function(asking)
    return asking.check


def if_raise(cond: Any) -> int:
    if cond:
        raise ValueError("wrong size")
    return 1


def if_not_raise(cond: Any) -> int:
    if not cond:
        raise ValueError("wrong " + "size")
    return 1


def plain_assert(cond: Any) -> int:
    assert cond, "must hold"
    return 1


def bare_assert(cond: Any) -> int:
    assert cond
    return 1


def formatted(cond: Any) -> int:
    n = 3
    if cond:
        raise ValueError(f"expected {n + 1}D, got {cond.answer}")
    return n


def class_only(cond: Any) -> int:
    if cond:
        raise RuntimeError
    return 1


def message_depends(cond: Any) -> int:
    n = 0
    if cond:
        raise ValueError("a" if n else "b")
    return 1


def else_raises(cond: Any) -> int:
    if cond:
        n = 1
    else:
        raise KeyError("no")
    return n


def in_loop(cond: Any) -> int:
    for _ in range(1):
        if cond:
            raise ValueError("in a loop")
    return 1


def in_with(cond: Any) -> int:
    with torch.no_grad():
        if cond:
            raise ValueError("inside with")
    return 1


def in_finally(cond: Any) -> int:
    n = 0
    try:
        if cond:
            raise ValueError("cleans up")
    finally:
        n += 1
    return n


def first_of_or(cond: Any) -> int:
    other = False
    if cond or other:
        raise ValueError("either")
    return 1


@pytest.mark.parametrize(
    "function, answer, message",
    [
        (if_raise, False, "wrong size"),
        (if_not_raise, True, "wrong size"),
        (plain_assert, True, "must hold"),
        (bare_assert, True, "assertion failed: cond"),
        (formatted, False, "expected {n + 1}D, got {cond.answer}"),
        (class_only, False, "RuntimeError"),
        (message_depends, False, "'a' if n else 'b'"),
        (else_raises, True, "no"),
        (in_loop, False, "in a loop"),
        (in_with, False, "inside with"),
        (in_finally, False, "cleans up"),
        (first_of_or, False, "either"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_branch_that_only_raises_is_a_check_with_its_message(
    function: Callable[[Any], Any], answer: bool, message: str
) -> None:
    check = decided(function, answer)
    assert check is not None
    assert check.raises_if is not answer
    assert check.message == message


def both_go_on(cond: Any) -> int:
    if cond:
        return 1
    return 2


def swallowed(cond: Any) -> int:
    try:
        if cond:
            raise ValueError("caught below")
    except ValueError:
        return 2
    return 1


def handled_outside(cond: Any) -> int:
    try:
        try:
            if cond:
                raise ValueError("passes the inner handler")
        except KeyError:
            return 3
    except ValueError:
        return 2
    return 1


def sometimes_raises(cond: Any) -> int:
    n = 1
    if cond:
        if n:
            return 2
        raise ValueError("not always")
    return 1


def conditional_expression(cond: Any) -> int:
    return 1 if cond else 2


def as_a_value(cond: Any) -> bool:
    return not cond


def through_bool(cond: Any) -> bool:
    return bool(cond)


def while_loop(cond: Any) -> int:
    while cond:
        break
    return 1


@pytest.mark.parametrize(
    "function",
    [
        both_go_on,
        swallowed,
        handled_outside,
        sometimes_raises,
        conditional_expression,
        as_a_value,
        through_bool,
        while_loop,
    ],
    ids=lambda value: value.__name__,
)
@pytest.mark.parametrize("answer", [True, False])
def test_a_branch_whose_sides_both_go_on_is_no_check(function: Callable[[Any], Any], answer: bool) -> None:
    assert decided(function, answer) is None


def test_a_function_without_source_still_gives_a_message() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(cond):\n    if cond:\n        raise ValueError('hidden')\n    return 1\n", namespace)
    check = decided(namespace["f"], False)
    assert check.raises_if is True
    assert check.message


def checked(x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2:
        raise ValueError(f"expected 2D, got {x.dim()}D")
    assert x.shape[0] > 0, "empty batch"
    return x + 1


def test_recorded_checks_pass_good_inputs_and_fail_bad_ones_with_the_users_message() -> None:
    traced = fx.symbolic_trace(checked)
    assert torch.equal(traced(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    with pytest.raises(AssertionError, match=r"expected 2D, got 1D"):
        traced(torch.ones(2))
    with pytest.raises(AssertionError, match="empty batch"):
        traced(torch.ones(0, 3))


def test_recorded_checks_survive_tracing_again() -> None:
    traced = fx.symbolic_trace(checked)
    assert fx.symbolic_trace(traced).code == traced.code


def nothing_found(x: torch.Tensor, names: list[str]) -> torch.Tensor:
    if names:
        raise ValueError("no names wanted")
    return x


def test_a_check_of_a_value_that_is_no_comparison_tests_its_truth() -> None:
    traced = fx.symbolic_trace(fx.symbolic_trace(nothing_found))
    x = torch.ones(1)
    assert traced(x, []) is x
    with pytest.raises(AssertionError, match="no names wanted"):
        traced(x, ["a"])


class NanCheck(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.min() < 0:
            raise ValueError("negative")
        return x


def test_a_check_that_raises_on_less_than_lets_nan_pass_as_eager_does() -> None:
    traced = fx.symbolic_trace(NanCheck())
    nan = torch.tensor([float("nan")])
    assert traced(nan) is nan
    with pytest.raises(AssertionError, match="negative"):
        traced(torch.tensor([-1.0]))


def test_checks_are_errors_where_the_tracer_is_told_not_to_record_them() -> None:
    class Strict(fx.Tracer):
        trace_asserts = False

    with pytest.raises(fx.TraceError, match="control flow"):
        Strict().trace(checked)


def test_compound_checks_are_recorded_whole() -> None:
    traced = fx.symbolic_trace(fx.symbolic_trace(Compound()))
    good = torch.ones(2, 2)
    assert traced(good) is good
    for bad, message in [
        (torch.ones(1), "two or three dimensions"),
        (torch.ones(2, 2, dtype=torch.float64), "wide only in 3-D"),
        (torch.ones(2, 2, 2), "strict"),
    ]:
        with pytest.raises(AssertionError, match=message):
            traced(bad)
    assert "lax" not in traced.code


def test_a_comparison_of_containers_is_not_taken_for_that_of_an_element() -> None:
    def sizes_are_wrong(x: torch.Tensor) -> torch.Tensor:
        if (x.shape[0], 5) == (3, 4):
            raise ValueError("never, for 5 is not 4")
        return x

    def sizes_are_wrong_and_more(x: torch.Tensor) -> torch.Tensor:
        if (x.shape[0], 5) == (3, 4) and x.dim() == 2:
            raise ValueError("never, for 5 is not 4")
        return x

    for program in (sizes_are_wrong, sizes_are_wrong_and_more):
        with pytest.raises(fx.TraceError, match="control flow"):
            fx.symbolic_trace(program)


def test_a_condition_that_only_holds_behind_the_first_is_not_evaluated_ahead() -> None:
    def third_dimension(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 3 and x.shape[2] != 5:
            raise ValueError("five columns")
        return x

    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(third_dimension)


def test_batch_norm_of_one_dimension_is_traced_without_leaf_modules() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).eval()
    traced = fx.GraphModule(module, WithoutLeaves().trace(module))
    x = torch.randn(4, 3)
    assert torch.equal(traced(x), module(x))
    with pytest.raises(AssertionError, match="expected 2D or 3D input"):
        traced(torch.randn(1, 3, 2, 2))


def fails_when_odd(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] % 2 != 0:
        raise ValueError("odd")
    return x * 2


def caught_by_the_caller(x: torch.Tensor) -> torch.Tensor:
    try:
        return fails_when_odd(x)
    except ValueError:
        return x * 0


def caught_around_a_with_block(x: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            if x.sum() > 0:
                raise ValueError("positive")
            y = x * 2
    except ValueError:
        y = x * 3
    return y


def suppressed(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(ValueError):
        if x.sum() > 0:
            raise ValueError
        x = x + 1
    return x


def suppressed_with_two_conditions(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(ValueError):
        if x.dim() == 2 and x.dtype == torch.float32:
            raise ValueError
        x = x + 1
    return x


def caught_with_two_conditions(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.dim() == 2 and x.dtype == torch.float32:
            raise ValueError
    except ValueError:
        x = x + 1
    return x


class WhilePositive:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.x.sum() <= 0:
            raise StopIteration
        return 1


def ends_an_iteration(x: torch.Tensor) -> torch.Tensor:
    for one in WhilePositive(x):
        x = x + one
    return x


class WhileTwoDimensional(WhilePositive):
    def __next__(self) -> int:
        if self.x.dim() != 2 and self.x.dtype == torch.float32:
            raise StopIteration
        return 1


def ends_an_iteration_by_two_conditions(x: torch.Tensor) -> torch.Tensor:
    return x + next(WhileTwoDimensional(x))


def hides_the_refusal(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * 2 if x.sum() > 0 else x * 4
    except ValueError:
        return x * 3


@pytest.mark.parametrize(
    "program",
    [
        caught_by_the_caller,
        caught_around_a_with_block,
        caught_with_two_conditions,
        suppressed,
        suppressed_with_two_conditions,
        ends_an_iteration,
        ends_an_iteration_by_two_conditions,
        hides_the_refusal,
    ],
    ids=lambda program: program.__name__,
)
def test_a_raise_that_something_catches_is_a_branch_and_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(program)


def test_a_check_below_a_transparent_with_block_is_recorded() -> None:
    def below(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return fails_when_odd(x)

    with pytest.raises(AssertionError, match="odd"):
        fx.symbolic_trace(below)(torch.ones(1))


class Private(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.__strict = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2 and self.__strict:
            raise ValueError("no")
        return x


def test_a_condition_that_cannot_be_evaluated_ahead_is_refused() -> None:
    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(Private())
