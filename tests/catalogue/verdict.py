"""What the suite says of a pass, or of a program, on a witness."""

from __future__ import annotations

from pytest_fx import LawViolation
from pytest_fx.harness.pass_run import LARGEST_TIME, PassRun, may_change
from pytest_fx.harness.process import process_kept
from pytest_fx.laws import affordable, broken_laws, choose_laws, law_called
from pytest_fx.loading import load_pass
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.blame import Blame

from .rows import Case, Right, Wrong

SECONDS = 0.5
"""For which a wrong pass may run; a right one ends by itself, also on a busy machine."""


def violations(row: Wrong | Right, witness: Case, only: tuple[str, ...] = ()) -> tuple[list[LawViolation], PassRun]:
    """How a pass or a program breaks laws, or ``only`` some, numbers first; and what was run for that."""
    subject = witness.subject()
    with process_kept(), Watchdog() as watchdog:
        if row.made_elsewhere:
            pass_run, excused = PassRun.given(subject, row.pass_(subject.fresh()), row.contract), ()
        else:
            pass_ = load_pass(row.pass_)
            seconds = SECONDS if isinstance(row, Wrong) else LARGEST_TIME
            pass_run = PassRun(subject, pass_, contract=row.contract, watchdog=watchdog, seconds=seconds)
            excused = may_change(pass_)
        laws = [law for law in choose_laws((), (), excused) if law.name in only or not only]
        return broken_laws(affordable(laws, pass_run), pass_run), pass_run


def verdict(row: Wrong | Right, witness: Case) -> str:
    """``green``, ``unjudged``, or ``red`` with the laws that the pass itself breaks, numbers first."""
    found, pass_run = violations(row, witness)
    if pass_run.before is not None:
        if pass_run.refusal is not None:
            return "unjudged"
        blame = Blame(pass_run.pass_)
        found, all_found = [one for one in found if blame.caused_by_pass(law_called(one.law), pass_run)], found
        if all_found and not found:
            return "unjudged"
    return f"red: {', '.join(one.law for one in found)}" if found else "green"
