"""Things by name."""

from __future__ import annotations

import pytest

from fx.errors import FxError, PassError
from fx.registry import Registry


@pytest.fixture
def shapes() -> Registry[object]:
    registry: Registry[object] = Registry("shape", "shapes", PassError)
    registry.register("blue-square", test_an_entry_is_found_by_its_name)
    registry.register("circle", 3)
    return registry


def test_an_entry_is_found_by_its_name(shapes: Registry[object]) -> None:
    assert shapes.get("circle") == 3
    assert shapes.names() == ["blue-square", "circle"]


def test_an_unknown_name_is_answered_with_the_nearest_ones(shapes: Registry[object]) -> None:
    with pytest.raises(PassError, match=r"(?s)no shape named 'Blue_Squares'.*did you mean 'blue-square'\?"):
        shapes.get("Blue_Squares")


def test_a_name_like_no_other_is_answered_with_all(shapes: Registry[object]) -> None:
    with pytest.raises(FxError, match="known shapes: blue-square, circle"):
        shapes.get("xyzzy")


def test_two_entries_of_one_name_are_refused_and_both_are_named(shapes: Registry[object]) -> None:
    with pytest.raises(PassError, match=r"(?s)two shapes are named 'blue-square'.*test_an_entry.* and builtins.int"):
        shapes.register("blue-square", 4)
    shapes.register("blue-square", test_an_entry_is_found_by_its_name)
