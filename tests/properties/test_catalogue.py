"""Every wrong pass of the catalogue is wrong on its witness, and every right one right on several, harness or none."""

from __future__ import annotations

import pytest
from catalogue import RIGHT, WRONG, Right, Wrong
from catalogue.evidence import EVIDENCE, apply, both, differs

import fx
from fx.passes import Exact


def test_the_catalogue_has_enough_rows() -> None:
    assert len(WRONG) >= 65
    assert len(RIGHT) >= 22
    assert not WRONG.keys() & RIGHT.keys()


@pytest.mark.parametrize("row", WRONG.values(), ids=list(WRONG))
def test_a_wrong_pass_breaks_its_law_on_its_witness(row: Wrong) -> None:
    assert EVIDENCE[row.laws[0]](row), f"{row.name} does nothing wrong: {row.wrong}"


@pytest.mark.parametrize("row", WRONG.values(), ids=list(WRONG))
def test_a_wrong_pass_says_what_is_wrong(row: Wrong) -> None:
    assert row.wrong.endswith(".")
    assert set(row.laws) <= set(EVIDENCE)


@pytest.mark.parametrize("row", RIGHT.values(), ids=list(RIGHT))
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
