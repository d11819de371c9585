"""check_pass distinguishes passes that match a formula from passes that leave one part of it unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from catalogue import RIGHT, Right, Wrong, of_theme

from pytest_fx import LawViolation, check_pass

ONCE = hypothesis.settings(
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


QUICK = None if hypothesis.settings().max_examples > 100 else 3  # 100 is Hypothesis's own default
"""The number of passes that are tried: the first of each kind; with ``make properties`` all."""
UNCHECKED = of_theme("formulas")[:QUICK]
CHECKED = [row for row in RIGHT.values() if row.theme == "formulas"][:QUICK]


@pytest.mark.thorough
@pytest.mark.parametrize("row", UNCHECKED, ids=[row.name for row in UNCHECKED])
def test_a_pass_that_leaves_one_thing_unchecked_is_caught(row: Wrong, tmp_path: Path) -> None:
    with pytest.raises(LawViolation):
        check_pass(row.pass_, max_examples=row.programs, seed=0, min_changed=0, settings=ONCE, folder=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("row", CHECKED, ids=[row.name for row in CHECKED])
def test_a_pass_that_checks_everything_is_kept_and_has_something_to_do(row: Right, tmp_path: Path) -> None:
    options: dict[str, Any] = {"settings": ONCE, "folder": tmp_path}
    assert check_pass(row.pass_, max_examples=60, seed=0, min_changed=3, **options).programs == 60
