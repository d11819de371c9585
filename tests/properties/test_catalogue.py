"""Every wrong pass of the catalogue is wrong on its witness, and every right one right on several, harness or none."""

from __future__ import annotations

import pytest
from catalogue import RIGHT, WRONG, Right, Wrong
from catalogue.evidence import EVIDENCE, apply, both, differs
from catalogue.rows import USUAL
from catalogue.verdict import verdict, violations
from selection import one_in, thorough_except

import fx
from fx.passes import Exact

SEARCHED = [row for row in WRONG.values() if row.programs]
SHOWN = [
    row
    for row in WRONG.values()
    if row.theme in ("fooling", "on_models", "made_elsewhere", "folding") and not row.programs
]
NAMES = [row.name for row in SHOWN]
SLOW = (
    "folded_without_eps",
    "with_another_eps",
    "rounded_once",
    "another_box",
    "scale_the_output",
    "leave_in_training",
)
NOT_COMPARED = ("relu_by_absolute_value",)
"""Wrong for an infinity alone, of which a pass may make NaN unless it promises the same bits."""
CHANGING = [row for row in RIGHT.values() if row.programs]
KEPT = [row for row in RIGHT.values() if not row.programs]


def named(rows: list[Wrong] | list[Right], step: int = 1) -> pytest.MarkDecorator:
    """Give a test all rows; by default, it is run on one row in so many."""
    return pytest.mark.parametrize("row", one_in(step, rows), ids=[row.name for row in rows])


def test_the_catalogue_has_enough_rows() -> None:
    assert len(SEARCHED) >= 200
    assert len(WRONG) - len(SEARCHED) >= 100
    assert len(RIGHT) >= 75


@named(SEARCHED)
def test_a_wrong_pass_breaks_its_law_on_its_witness(row: Wrong) -> None:
    assert EVIDENCE[row.laws[0]](row), f"{row.name} does nothing wrong: {row.wrong}"


@named(list(WRONG.values()))
def test_a_wrong_pass_describes_its_fault(row: Wrong) -> None:
    assert row.wrong.endswith(".")
    assert row.model or set(row.laws) <= set(EVIDENCE) or not row.programs


@named([row for row in SEARCHED if "changes" not in row.laws and row.name not in NOT_COMPARED], step=3)
def test_the_harness_catches_a_wrong_pass_on_its_witness_and_says_so(row: Wrong) -> None:
    (violation, *_), _ = violations(row, row.witness(), row.laws)
    assert violation.law in row.laws
    assert any(words in str(violation) for words in row.says or USUAL[violation.law])


@pytest.mark.parametrize("row", thorough_except([row for row in SHOWN if row.name not in SLOW], SHOWN), ids=NAMES)
def test_a_wrong_pass_that_only_its_witness_shows_is_caught_by_its_laws(row: Wrong) -> None:
    assert set(row.laws) <= set(verdict(row, row.witness()).removeprefix("red: ").split(", "))


@named(KEPT)
def test_a_right_pass_is_not_flagged_on_its_witnesses(row: Right) -> None:
    assert [verdict(row, witness()) for witness in row.witnesses] == ["green"] * len(row.witnesses)


@named(CHANGING)
def test_a_right_pass_changes_its_witnesses_and_keeps_their_outputs(row: Right) -> None:
    for witness in row.witnesses:
        program = witness()
        program.module.eval()
        before = fx.symbolic_trace(program.module)
        after = apply(row.pass_, program)
        after.graph.lint()
        assert str(after.graph) != str(before.graph)
        expected, actual = both(row, program)
        assert not differs(expected, actual, isinstance(row.contract, Exact)), str(actual)
