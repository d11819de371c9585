"""check_pass tells passes that match a formula from those that leave one thing of it unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from formula_passes import RIGHT, WRONG

from pytest_fx import LawViolation, check_pass

ONCE = hypothesis.settings(
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


QUICK = None if hypothesis.settings().max_examples > 100 else 3  # 100 is Hypothesis's own default
"""How many are tried where no profile asks for more programs: the first of each kind, and ``make properties`` all."""


@pytest.mark.thorough
@pytest.mark.parametrize("unchecked", list(WRONG)[:QUICK])
def test_a_pass_that_leaves_one_thing_unchecked_is_caught(unchecked: str, tmp_path: Path) -> None:
    with pytest.raises(LawViolation):
        check_pass(WRONG[unchecked], max_examples=1600, seed=0, min_changed=0, settings=ONCE, folder=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(RIGHT)[:QUICK])
def test_a_pass_that_checks_everything_is_kept_and_has_something_to_do(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"settings": ONCE, "folder": tmp_path}
    assert check_pass(RIGHT[name], max_examples=60, seed=0, min_changed=3, **options).programs == 60
