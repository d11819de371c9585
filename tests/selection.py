"""The cases of a parametrized test that `make test` runs, and those that only `make thorough` runs."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def thorough_except(kept: Collection[Any], cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases; all but the ``kept`` ones are marked thorough. The first value of a case names it."""
    results = []
    for case in cases:
        values: Sequence[Any] = case if isinstance(case, tuple) else (case,)
        marks = () if values[0] in kept else (pytest.mark.thorough,)
        results.append(pytest.param(*values, marks=marks))
    assert sum(not case.marks for case in results) >= len(kept), f"unknown among {kept}"
    return results
