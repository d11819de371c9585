"""pytest_fx.laws.gradients: when a gradient is another one."""

import pytest
import torch

from pytest_fx.harness.equality import Leaf
from pytest_fx.laws.gradients import differ


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-5), (torch.float32, 1e-3), (torch.float16, 0.1)])
def test_gradients_may_differ_by_a_part_of_the_element_and_of_the_largest_one(dtype, tolerance):
    expected = torch.tensor([0.5, -2.0, 0.0], dtype=dtype)
    for place, largest in ((0, 2.5), (1, 4.0), (2, 2.0)):
        for sign, part, is_another in ((1, 0.9, False), (-1, 0.9, False), (1, 1.2, True), (-1, 1.2, True)):
            actual = expected.clone()
            actual[place] += sign * part * tolerance * largest
            assert differ(Leaf("", expected, actual), 0.0) is is_another
            assert not differ(Leaf("", expected, actual), 0.5 * tolerance * largest)
            assert not differ(Leaf("", expected, actual), torch.inf)


def test_a_gradient_that_is_not_finite_is_another_one_than_a_finite_one():
    expected = torch.tensor([1.0, torch.inf])
    assert not differ(Leaf("", expected, expected.clone()), 0.0)
    assert differ(Leaf("", expected, torch.tensor([torch.nan, torch.inf])), 0.0)
    assert differ(Leaf("", expected, torch.tensor([1.0, 1.0])), 0.0)


def test_gradients_of_nothing_but_zeros_may_differ_by_rounding():
    zeros = torch.zeros(2, dtype=torch.float64)
    assert not differ(Leaf("", zeros, zeros + 0.9e-8), 0.0)
    assert differ(Leaf("", zeros, zeros + 1.2e-8), 0.0)
