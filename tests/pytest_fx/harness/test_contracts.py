"""pytest_fx.harness.contracts: the differences that each contract allows, and its messages."""

import math

import pytest
import torch

from fx.passes import Close, close
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.contracts import Comparison

EXACT = torch.linspace(1, 2, 64, dtype=torch.float64)
EAGER = (EXACT + 1e-6).float()
EAGER_ERROR = float((EAGER.double() - EXACT).abs().max())


def comparison(actual, actual64=EXACT, eager=EAGER, eager64=EXACT) -> Comparison:
    return Comparison("model", "pass", [eager], [actual], [eager64], None if actual64 is None else [actual64])


def moved(tensor: torch.Tensor, by: float) -> torch.Tensor:
    result = tensor.clone()
    result[3] += by
    return result


def test_close_allows_rounding_errors_like_eagers():
    comparison((EXACT - close.error_factor * 0.9 * 1e-6).float()).require_close(Close())


def test_close_refuses_an_error_in_float64_that_float32_would_hide():
    with pytest.raises(ContractViolation) as error:
        comparison(EAGER, actual64=moved(EXACT, 2e-5)).require_close(Close())
    message = str(error.value)
    assert message.startswith("pass changes what model computes\n  where  output[3], the worst of 1 wrong in 64")
    assert "close(rtol=1e-05, atol=1e-08) allows 1e-05 there in float64" in message
    assert f"eager's rounding error in float32 is at most {EAGER_ERROR:.2g}" in message


def test_close_takes_the_tolerances_of_the_contract():
    comparison(EAGER, actual64=moved(EXACT, 2e-5)).require_close(Close(rtol=1e-4))


def test_close_refuses_a_float32_error_of_many_times_eagers_even_if_float64_agrees():
    with pytest.raises(ContractViolation) as error:
        comparison(moved(EAGER, 2 * close.error_factor * 1e-6)).require_close(Close())
    message = str(error.value)
    assert "output[3], the worst of 1 wrong in 64 element(s), float32" in message
    assert "8 times eager's own largest error" in message
    assert f"eager {EAGER[3].item()!r}, transformed" in message
    assert f"eager in float64 {EXACT[3].item()!r}" in message


def test_close_judges_a_program_without_float64_by_the_working_dtype_alone():
    comparison(EAGER, actual64=None).require_close(Close())
    with pytest.raises(ContractViolation):
        comparison(moved(EAGER, 1e-3), actual64=None).require_close(Close())


def test_close_allows_a_few_rounding_steps_where_eager_is_right_by_luck():
    exact = torch.full((8,), 3.0, dtype=torch.float64)
    ulp = torch.finfo(torch.float32).eps * 3
    comparison(moved(exact, 3 * ulp).float(), exact, exact.float(), exact).require_close(Close())
    with pytest.raises(ContractViolation):
        comparison(moved(exact, 6 * ulp).float(), exact, exact.float(), exact).require_close(Close())


def test_close_wants_integers_exactly():
    indices = torch.tensor([3, 4])
    comparison(indices, indices, indices, indices).require_close(Close())
    with pytest.raises(ContractViolation):
        comparison(indices + 1, indices, indices, indices).require_close(Close())


def test_close_wants_nans_and_infinities_where_eager_has_them():
    odd = torch.tensor([math.nan, math.inf, 1.0], dtype=torch.float64)
    comparison(odd.float(), odd, odd.float(), odd).require_close(Close())
    for index, value in ((0, 1.0), (1, 1e30), (2, math.nan)):
        wrong = odd.clone()
        wrong[index] = value
        with pytest.raises(ContractViolation):
            comparison(wrong.float(), odd, odd.float(), odd).require_close(Close())
        with pytest.raises(ContractViolation):
            comparison(odd.float(), wrong, odd.float(), odd).require_close(Close())


def test_exact_refuses_a_single_bit():
    comparison(EAGER.clone()).require_exact()
    with pytest.raises(ContractViolation, match="exact promises equal bits"):
        comparison(torch.nextafter(EAGER, EAGER + 1)).require_exact()


def test_approximate_wants_enough_signal_in_each_output():
    noisy = EXACT * 1.001
    eager = {"good": EXACT, "bad": EXACT}
    both = comparison({"good": EXACT * 1.0001, "bad": noisy}, None, eager, eager)
    assert both.sqnr_db() == {"['good']": pytest.approx(80, abs=0.01), "['bad']": pytest.approx(60, abs=0.01)}
    both.require_sqnr(59.9)
    with pytest.raises(ContractViolation) as error:
        both.require_sqnr(70)
    assert str(error.value) == (
        "pass changes what model computes by more than it promises\n"
        "  where  output['bad']\n"
        "  value  signal-to-quantization-noise ratio 60.0 dB; at [63], the worst, eager 2.0, transformed 2.002\n"
        "  why    approximate promises at least 70 dB"
    )


@pytest.mark.parametrize("actual, decibels", [(EXACT, math.inf), (EXACT * math.nan, -math.inf)])
def test_no_noise_is_an_infinite_ratio_and_no_number_none_at_all(actual, decibels):
    assert comparison(actual, None, EXACT, EXACT).sqnr_db() == {"": decibels}


def test_a_program_that_returns_something_else_is_refused_by_every_contract():
    wrong = comparison([EAGER])
    for require in (wrong.require_exact, lambda: wrong.require_close(Close()), lambda: wrong.require_sqnr(10)):
        with pytest.raises(ContractViolation) as error:
            require()
        assert str(error.value) == (
            "pass changes what model returns\n  why    eager returns tensor, the program list(tensor)"
        )


def test_another_dtype_is_refused():
    with pytest.raises(ContractViolation, match=r"torch\.float32 in eager and torch\.float64 in the program"):
        comparison(EXACT).require_close(Close())


def test_errors_are_pooled_over_draws():
    off = EXACT + 1e-4
    several = Comparison("model", "pass", [off.float(), EAGER], [EAGER, off.float()], [EXACT, EXACT], None)
    several.require_close(Close())
    assert several.largest_error() == pytest.approx(1e-4, rel=1e-2)
    assert several.largest_eager_error() == pytest.approx(1e-4, rel=1e-2)
    assert several.largest_error64() is None


def test_an_integer_is_another_one_or_is_not_and_adds_no_error():
    eager, actual = [EAGER, torch.tensor([7])], [EAGER, torch.tensor([3])]
    several = Comparison("model", "pass", [eager], [actual], [[EXACT, torch.tensor([7])]], None)
    assert several.largest_error() == several.largest_eager_error() < 1e-3
    assert several.bound_of_largest_error(Close()) < 1e-3
    with pytest.raises(ContractViolation, match="eager 7, transformed 3"):
        several.require_close(Close())


def test_an_output_that_equals_eagers_keeps_any_ratio_however_far_eager_is_from_float64():
    comparison(EAGER, None, eager64=EXACT * 2).require_sqnr(300)
