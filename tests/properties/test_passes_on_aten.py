"""Passes on ATen of the catalogue are judged rightly, each on a program on which it acts."""

from __future__ import annotations

from collections import Counter

import pytest
from catalogue.rounds import ROUNDS
from catalogue.rounds.aten import ROUND
from catalogue.rounds.witnesses_on_aten import WITNESSES
from catalogue.rows import Wrong
from catalogue.verdict import violations
from selection import thorough_except

from pytest_fx.loading import load_pass

ROWS = {row.name: row for row in ROUNDS.values() if row.round == ROUND}
QUICK = (
    "absorb_pads",
    "drop_buffer_writes",
    "merge_equal_calls_aten",
    "FuseLogSoftmax",
    "HardtanhAsClamp",
    "gradients_above_threshold",
    "slice_within_one_part",
)


def test_the_catalogue_has_60_wrong_and_25_right_passes_on_aten_in_six_forms() -> None:
    kinds = Counter(type(row) is Wrong for row in ROWS.values())
    assert kinds[True] >= 60
    assert kinds[False] >= 25
    forms = {load_pass(row.pass_, row.form).form.name for row in ROWS.values()}
    assert forms == {"aten", "exported-program", "export-pass", "graph", "pattern-matcher", "joint"}
    assert {*WITNESSES} == {*ROWS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", thorough_except(QUICK, sorted(ROWS)))
def test_a_pass_on_aten_is_judged_rightly_where_it_acts(name: str) -> None:
    row = ROWS[name]
    broken, pass_run = violations(row, WITNESSES[name]())
    assert any(run.changed for run in pass_run.at_each_level())
    if isinstance(row, Wrong):
        assert broken[0].law in row.laws
    else:
        assert not broken
