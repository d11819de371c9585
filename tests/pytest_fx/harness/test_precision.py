"""pytest_fx.harness.precision: distances in steps of a number format, and ratios of signal to noise."""

import math

import pytest
import torch

from pytest_fx.harness.precision import decibels, ulps_apart

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 100.0])
def test_neighbours_are_one_step_apart(dtype, value):
    one = torch.tensor(value, dtype=dtype)
    assert ulps_apart(one, torch.nextafter(one, torch.tensor(math.inf, dtype=dtype))) == 1
    assert ulps_apart(one, one) == 0


def test_steps_are_counted_through_zero_and_to_infinity():
    tiny = torch.tensor(5e-324, dtype=torch.float64)
    assert ulps_apart(-tiny, tiny) == 2
    assert ulps_apart(torch.tensor(0.0), torch.tensor(-0.0)) == 0
    assert ulps_apart(torch.tensor(torch.finfo(torch.float32).max), torch.tensor(math.inf)) == 1


def test_the_format_is_that_of_the_program():
    assert ulps_apart(torch.tensor(1 + 1e-12, dtype=torch.float64), torch.tensor(1.0)) == 0


def test_complex_numbers_are_as_far_apart_as_the_worse_part():
    assert ulps_apart(torch.tensor(1 + 1j), torch.tensor(1.0000001 + 1.0000005j)) == 4


@pytest.mark.parametrize("one, other", [(3, 4), (True, False), (math.nan, 1.0), (1.0, math.nan), (math.nan * 1j, 1j)])
def test_integers_and_what_is_no_number_have_no_steps(one, other):
    assert ulps_apart(torch.tensor(one), torch.tensor(other)) is None


@pytest.mark.parametrize(
    "signal, noise, ratio",
    [(100.0, 1.0, 20.0), (1.0, 0.0, math.inf), (0.0, 1.0, -math.inf), (1.0, math.inf, -math.inf), (0.0, 0.0, math.inf)],
)
def test_ratios_are_in_decibels(signal, noise, ratio):
    assert decibels(signal, noise) == ratio
