"""Recorded checks: branches on traced values that only raise on one side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from building import WithoutLeaves
from programs_with_checks import Compound

import fx


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


def test_a_check_that_raises_on_less_than_accepts_nan_as_eager_does() -> None:
    traced = fx.symbolic_trace(NanCheck())
    nan = torch.tensor([float("nan")])
    assert traced(nan) is nan
    with pytest.raises(AssertionError, match="negative"):
        traced(torch.tensor([-1.0]))


def test_checks_are_errors_if_the_tracer_does_not_record_them() -> None:
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


def test_checks_of_torch_are_recorded_with_their_message() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        torch._check(rows > 1, lambda: f"more than one row, not {rows} of {x.shape}")
        torch._check(columns == 3)
        torch._check_value(x.dim() == 2, lambda: "two")
        torch._check(2 > 1, lambda: str(1 / 0))
        torch._check(x.numel() < 100, lambda: str(1 // 0))
        _check(x.is_floating_point())
        return x * 2

    _check = torch._check
    captured = fx.symbolic_trace(program)
    assert torch.equal(captured(torch.ones(2, 3)), program(torch.ones(2, 3)))
    messages = {
        (1, 3): r"^more than one row, not 1 of torch.Size\(\[1, 3\]\)",
        (2, 2): r"the condition of torch._check does not hold: .*test_checks.py:\d+",
        (50, 3): r"torch._check\(x.numel\(\) < 100, lambda: str\(1 // 0\)\)",
    }
    for shape, message in messages.items():
        with pytest.raises(AssertionError, match=message):
            captured(torch.ones(shape))
    with pytest.raises(AssertionError, match="does not hold"):
        captured(torch.ones(2, 3, dtype=torch.int64))


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


def caught_with_two_conditions(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.dim() == 2 and x.dtype == torch.float32:
            raise ValueError
    except ValueError:
        x = x + 1
    return x


def suppressed_with_two_conditions(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(ValueError):
        if x.dim() == 2 and x.dtype == torch.float32:
            raise ValueError
        x = x + 1
    return x


class EndsWithTwoDimensions:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.x.dim() == 2 and self.x.dtype == torch.float32:
            raise StopIteration
        return 1


def ends_an_iteration_by_two_conditions(x: torch.Tensor) -> torch.Tensor:
    return x + next(EndsWithTwoDimensions(x))


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
        suppressed_with_two_conditions,
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
    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.__limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 and self.__limit is not None and x.dim() != self.__limit:
            raise ValueError("no")
        return x


def test_conditions_on_names_of_a_class_and_on_none_are_read_from_byte_code() -> None:
    assert fx.symbolic_trace(Private(None))(torch.ones(1)).dim() == 1
    traced = fx.symbolic_trace(Private(3))
    assert traced(torch.ones(1, 1, 1)).dim() == 3
    with pytest.raises(AssertionError, match="no"):
        traced(torch.ones(1))


def test_conditions_of_two_statements_are_one_check() -> None:
    def nested(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:  # noqa: SIM102 - two statements are what this is about
            if not x.dtype == torch.float32:
                raise ValueError("no")
        return x

    traced = fx.symbolic_trace(nested)
    assert traced(torch.ones(2)).shape == traced(torch.ones(2, 1)).squeeze(1).shape
    with pytest.raises(AssertionError, match="no"):
        traced(torch.ones(2, 1).int())


def strict() -> bool:
    return True


@pytest.mark.parametrize("condition", ["strict()", "(y := x.dim()) == y"])
def test_a_condition_that_cannot_be_evaluated_ahead_is_refused(condition: str) -> None:
    namespace: dict[str, Any] = {"strict": strict}
    exec(f"def program(x):\n    if x.dim() == 2 and {condition}:\n        raise ValueError\n    return x", namespace)
    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(namespace["program"])
