"""The verdict of the suite on a pass, or on a program, on a witness."""

from __future__ import annotations

from pytest_fx import LawViolation
from pytest_fx.harness.pass_run import LARGEST_TIME, PassRun, may_change
from pytest_fx.harness.process import process_kept
from pytest_fx.laws import affordable, broken_at_levels, choose_laws, law_called
from pytest_fx.loading import load_pass
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.blame import Blame

from .rows import Case, Right, Wrong

SECONDS = 0.5
"""For which a wrong pass may run; a right one ends by itself, also on a busy machine."""


def violations(row: Wrong | Right, witness: Case, only: tuple[str, ...] = ()) -> tuple[list[LawViolation], PassRun]:
    """Return the laws that a pass or a program breaks, or of ``only`` some, numbers first; and the run behind them."""
    subject = witness.subject()
    with process_kept(), Watchdog() as watchdog:
        if row.made_elsewhere:
            pass_run, excused = PassRun.given(subject, row.pass_(subject.fresh()), row.contract), ()
        else:
            pass_ = load_pass(row.pass_, row.form)
            seconds = SECONDS if isinstance(row, Wrong) else LARGEST_TIME
            pass_run = PassRun(subject, pass_, contract=row.contract, watchdog=watchdog, seconds=seconds)
            excused = may_change(pass_)
        laws = [law for law in choose_laws((), (), excused) if law.name in only or not only]
        pass_run, broken = broken_at_levels(lambda run: affordable(laws, run), pass_run)
        return broken, pass_run


def verdict(row: Wrong | Right, witness: Case) -> str:
    """``green``, ``unjudged``, or ``red`` with the laws that the pass itself breaks, numbers first."""
    broken, pass_run = violations(row, witness)
    if pass_run.before is not None:
        if pass_run.refusal is not None:
            return "unjudged"
        blame = Blame(pass_run.pass_)
        broken, all_found = (
            [violation for violation in broken if blame.caused_by_pass(law_called(violation.law), pass_run)],
            broken,
        )
        if all_found and not broken:
            return "unjudged"
    return f"red: {', '.join(violation.law for violation in broken)}" if broken else "green"
