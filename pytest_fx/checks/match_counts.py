"""How much a pass changes in a model: on record in every run, and compared with an earlier one."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from fx.matcher import explanations
from pytest_fx.errors import LostRewrite
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.options import options_of
from pytest_fx.records.baseline import BASELINE, MatchCount
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import SummaryRow

SHOWN_MISSES = 3
"""Near misses that are reported of one pass in one model."""


def row_of(pass_run: PassRun) -> SummaryRow:
    """Return what is known of a program, before anything was compared, for the table and the record."""
    before, after = pass_run.before, pass_run.after
    outcome = None  # why there is no program to compare, if there is none
    if pass_run.error is not None:
        outcome = f"raises {type(pass_run.error).__name__}"
    elif pass_run.refusal is not None:
        outcome = "refuses"
    elif pass_run.too_long is not None:
        outcome = "takes too long"
    return SummaryRow(
        pass_run.subject.name,
        pass_run.name,
        nodes_before=None if before is None else len(before.nodes),
        nodes_after=None if after is None else len(after.graph.nodes),
        edits=pass_run.edits,
        changed=pass_run.changed,
        outcome=outcome,
    )


def require_no_less(item: pytest.Item, pass_run: PassRun) -> None:
    """Say in the summary if a pass changes less in a model than in the run that ``--fx-baseline`` names.

    It has the places where a pattern that the pass looks for nearly matches. Raises
    :class:`~pytest_fx.errors.LostRewrite` for it under ``--fx-strict``.
    """
    __tracebackhide__ = True
    row = row_of(pass_run)
    error = _lost(item, pass_run, row)
    if error is None:
        return
    record_row(item, replace(row, less=str(error)))
    if options_of(item).strict:
        raise error


def _lost(item: pytest.Item, pass_run: PassRun, row: SummaryRow) -> LostRewrite | None:
    baseline = item.config.stash[BASELINE]
    now = MatchCount.of_row(asdict(row))
    before = None if baseline is None or now is None else baseline.match_counts.get((now.model, now.program))
    if before is None or now is None or not now.less_than(before):
        return None
    misses = near_misses(pass_run)
    return LostRewrite(
        f"{row.program} changes less in {row.model} than in the baseline",
        value=f"now {now}, in the baseline {before}",
        why="; ".join(misses) or None,
    )


def near_misses(pass_run: PassRun) -> list[str]:
    """Return where patterns that a pass looks for nearly match in a model, and why they do not; the first few.

    It is applied once more for that. A pass that does not look by :mod:`fx.matcher` has none.
    """
    with explanations() as explained:
        pass_run.transform(pass_run.subject.shared_copy())
    misses = dict.fromkeys(str(miss) for explanation in explained for miss in explanation.near_misses)
    return [f"nearly {miss}" for miss in misses][:SHOWN_MISSES]
