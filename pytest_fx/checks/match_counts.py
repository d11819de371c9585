"""Number of changes that a pass makes in a model: recorded in every run, and compared with an earlier run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import pytest

from fx.interop.match_explanation import searches_explained
from fx.matcher import explanations
from fx.naming.printing import describe
from pytest_fx.collection import PassCase
from pytest_fx.errors import LostRewrite, TooFewChanges
from pytest_fx.forms import form_name
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.options import options_of, parameters_of
from pytest_fx.processes.deadline import TookTooLong
from pytest_fx.records.baseline import BASELINE, MatchCount
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import WRONG, SummaryRow

SHOWN_MISSES = 3
"""The most near misses that are reported for a pass in a model."""


def row_of(pass_run: PassRun) -> SummaryRow:
    """Return the summary row of a program before any comparison, for the table and the record."""
    before, after, result = pass_run.before, pass_run.after, pass_run.form_result
    outcome = None  # the reason why there is no program to compare
    if pass_run.error is not None:
        outcome = f"raises {type(pass_run.error).__name__}"
    elif pass_run.refusal is not None:
        outcome = "refuses"
    elif pass_run.too_long is not None:
        outcome = "takes too long"
    choice = None if after is None else after.meta.get("backend_choice")
    return SummaryRow(
        pass_run.subject.name,
        pass_run.name,
        form=form_name(pass_run.pass_),
        nodes_before=len(before.nodes) if before is not None else result.nodes_before if result is not None else None,
        nodes_after=len(after.graph.nodes) if after is not None else result.nodes_after if result is not None else None,
        kept_bytes=None if result is None else result.kept_bytes,
        kept_bytes_before=None if result is None else result.kept_bytes_before,
        edits=pass_run.edits,
        changed=pass_run.changed,
        choice=None if choice is None else str(choice),
        outcome=outcome,
    )


def require_no_less(item: pytest.Item, pass_run: PassRun) -> None:
    """Report in the summary if a pass changes less in a model than in the run of ``--fx-baseline``.

    The report lists near misses of the pass's patterns. Under ``--fx-strict`` it is raised as
    :class:`~pytest_fx.errors.LostRewrite`.
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


def require_changes(item: pytest.Item, pass_run: PassRun) -> None:
    """Raise :class:`~pytest_fx.errors.TooFewChanges` if a pass makes fewer changes than the test requires.

    Without a named pass, all registered passes run; most of them find nothing to change, and no number is required.
    """
    __tracebackhide__ = True
    options, row = options_of(item), row_of(pass_run)
    if not _is_named(item) or pass_run.error is not None or (count := changes_in(pass_run)) >= options.min_changes:
        return
    record_row(item, replace(row, outcome=f"{WRONG}: changes too little"))
    done = MatchCount.of_row(asdict(row))
    why = [str(pass_run.refusal or pass_run.too_long)] if pass_run.program is None else near_misses(pass_run)
    raise TooFewChanges(
        f"{row.program} makes {count} change(s) in {row.model}, of at least {options.min_changes}",
        value=None if done is None else f"it changes {done}",
        why="; ".join(why) or None,
        remedy="search the captured program for the pass's pattern (--fx-draw DIR), or leave the model out",
    )


def _is_named(item: pytest.Item) -> bool:
    """Return whether the user named the pass, rather than let all registered passes run."""
    case = parameters_of(item).get("fx_pass")
    return bool(options_of(item).passes) or not isinstance(case, PassCase)


def note_nearest_match(item: pytest.Item, pass_run: PassRun) -> None:
    """Note in the row of a named pass that changes nothing where its patterns come nearest, and what fails there."""
    if pass_run.changed or pass_run.program is None or not _is_named(item):
        return
    if (nearest := nearest_match(pass_run)) is not None:
        record_row(item, replace(row_of(pass_run), unmatched=nearest))


def changes_in(pass_run: PassRun) -> int:
    """Return the number of changes by a pass: its recorded edits, or else the operations that are gone or new."""
    if not pass_run.changed:
        return 0
    if pass_run.edits:
        return pass_run.edits
    if (result := pass_run.form_result) is not None:
        return max(1, abs((result.nodes_after or 0) - (result.nodes_before or 0)))
    assert pass_run.before is not None
    assert pass_run.after is not None
    before = Counter(_operation(printed) for printed, _ in pass_run.before.nodes.values())
    after = Counter(_operation(describe(node)) for node in pass_run.after.graph.nodes)
    return max(1, (before - after).total(), (after - before).total())


def _operation(printed: str) -> str:
    """Return the operation and target of a printed node."""
    return printed.partition(" = ")[2].partition("(")[0]


def near_misses(pass_run: PassRun) -> list[str]:
    """Return the first near misses of a pass's patterns in a model, each with the reason, or else the nearest place.

    The pass is applied once more for this. There are none for a pass that uses no matcher.
    """
    misses: dict[str, None] = {}
    if not pass_run.is_in_form:
        with explanations() as explained:
            pass_run.transform(pass_run.subject.shared_copy())
        misses = dict.fromkeys(str(miss) for explanation in explained for miss in explanation.near_misses)
    if misses:
        return [f"nearly {miss}" for miss in misses][:SHOWN_MISSES]
    nearest = nearest_match(pass_run)
    return [] if nearest is None else [nearest]


def nearest_match(pass_run: PassRun) -> str | None:
    """Return the nearest place of the patterns that a pass looks for in vain, with the first failed condition.

    The pass is applied once more for this. The matchers of torch.fx and of Inductor count as well as ours. Return None
    if the pass uses no matcher, or fails this time.
    """
    with searches_explained() as searches:
        try:
            pass_run.apply_again()
        except (Exception, TookTooLong):  # this is only to explain
            return None
    nearest = max(searches, key=lambda search: (search.matched, -search.operations), default=None)
    return None if nearest is None else str(nearest)
