"""pytest_fx.harness.heat_map: the places of errors in a tensor."""

import math

import pytest
import torch

from pytest_fx.harness.heat_map import LEVELS, MOST_COLUMNS, MOST_ROWS, HeatMap


def mapped(errors: torch.Tensor, limit: float = 0.0) -> HeatMap:
    return HeatMap.of(errors, errors > limit)


def test_cells_have_levels_by_the_logarithm_of_the_error_and_zero_where_nothing_is_wrong():
    heat_map = mapped(torch.tensor([[0.0, 1e-6, 1e-5], [1e-4, 1e-3, 1e-8]]), limit=1e-7)
    assert heat_map.cells == ("014", "690")
    assert [heat_map.smallest, heat_map.largest] == pytest.approx([1e-6, 1e-3])


def test_one_wrong_element_of_a_large_tensor_is_seen():
    errors = torch.zeros(1, 256, 56, 56)
    errors[0, 255, 0, 0] = 0.5
    heat_map = mapped(errors)
    assert len(heat_map.cells) == MOST_ROWS and {len(row) for row in heat_map.cells} == {MOST_COLUMNS}
    assert [row.count(str(LEVELS)) for row in heat_map.cells] == [0] * (MOST_ROWS - 1) + [1]
    assert heat_map.cells[-1][0] == str(LEVELS)
    assert (heat_map.shape, heat_map.down) == ((1, 256, 56, 56), (1, 256))


def test_a_number_that_is_missing_has_the_highest_level_and_an_infinite_error():
    heat_map = mapped(torch.tensor([1e-3, math.inf, 1e-1, 0.0]))
    assert (
        heat_map.cells == ("1990",)
        and heat_map.largest == math.inf
        and math.isclose(heat_map.smallest, 1e-3, rel_tol=1e-6)
    )
    assert mapped(torch.tensor([math.inf])).cells == ("9",)


def test_tensors_without_dimensions_and_without_elements_have_maps():
    assert mapped(torch.tensor(2.0)).cells == ("9",)
    assert mapped(torch.zeros(0, 3)).cells == ()
    assert mapped(torch.zeros(2, 2)).cells == ("00", "00")
