"""How much a pass changes in a model: on record in every run, and compared with an earlier one."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from fx.matcher import explanations
from pytest_fx.errors import LostRewrite
from pytest_fx.harness.application import Application
from pytest_fx.options import options_of
from pytest_fx.records.baseline import BASELINE, Firing
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import SummaryRow

SHOWN_MISSES = 3
"""Near misses that are told of one pass in one model."""


def row_of(application: Application) -> SummaryRow:
    """Return what is known of a program, before anything was compared, for the table and the record."""
    before, after = application.before, application.after
    return SummaryRow(
        application.subject.name,
        application.name,
        nodes_before=None if before is None else len(before.nodes),
        nodes_after=None if after is None else len(after.graph.nodes),
        edits=application.edits,
        changed=application.changed,
        outcome=_outcome(application),
    )


def _outcome(application: Application) -> str | None:
    """Return why there is no program to compare, if there is none."""
    if application.error is not None:
        return f"raises {type(application.error).__name__}"
    if application.refusal is not None:
        return "refuses"
    return "takes too long" if application.too_long is not None else None


def require_no_less(item: pytest.Item, application: Application) -> None:
    """Say in the summary if a pass changes less in a model than in the run that ``--fx-baseline`` names.

    It has the places where a pattern that the pass looks for nearly matches. Raises
    :class:`~pytest_fx.errors.LostRewrite` for it under ``--fx-strict``.
    """
    __tracebackhide__ = True
    row = row_of(application)
    error = _lost(item, application, row)
    if error is None:
        return
    record_row(item, replace(row, less=str(error)))
    if options_of(item).strict:
        raise error


def _lost(item: pytest.Item, application: Application, row: SummaryRow) -> LostRewrite | None:
    baseline = item.config.stash[BASELINE]
    now = Firing.of_row(asdict(row))
    before = None if baseline is None or now is None else baseline.firings.get((now.model, now.program))
    if before is None or now is None or not now.less_than(before):
        return None
    misses = near_misses(application)
    return LostRewrite(
        f"{row.program} changes less in {row.model} than in the baseline",
        value=f"now {now}, in the baseline {before}",
        why="; ".join(misses) or None,
    )


def near_misses(application: Application) -> list[str]:
    """Return where patterns that a pass looks for nearly match in a model, and why they do not; the first few.

    It is applied once more for that. A pass that does not look by :mod:`fx.matcher` has none.
    """
    with explanations() as heard:
        application.transform(application.subject.borrowed())
    misses = dict.fromkeys(str(miss) for explanation in heard for miss in explanation.near_misses)
    return [f"nearly {miss}" for miss in misses][:SHOWN_MISSES]
