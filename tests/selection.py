"""The cases of a parametrized test that `make test` runs, and those that only `make thorough` runs."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def thorough_except(kept: Collection[Any], cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases; all but the ``kept`` ones are marked thorough. The first value of a case names it."""
    results = [_case(case, _values(case)[0] in kept) for case in cases]
    assert sum(not case.marks for case in results) >= len(kept), f"unknown among {kept}"
    return results


def one_in(step: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases; all but the first of each ``step`` are marked thorough."""
    return [_case(case, number % step == 0) for number, case in enumerate(cases)]


def _values(case: Any) -> Sequence[Any]:
    return case if isinstance(case, tuple) else (case,)


def _case(case: Any, is_kept: bool) -> ParameterSet:
    return pytest.param(*_values(case), marks=() if is_kept else (pytest.mark.thorough,))
