"""Advice to the author of a pass that breaks laws on purpose: one line that declares all its changes at once."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from fx.passes import PassPipeline
from fx.pipelines.verification import says_may_change
from pytest_fx.errors import LawViolation
from pytest_fx.forms import FormedPass, unwrapped
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.laws import TABLE

_ALONE = "leave programs in training mode alone (if graph_module.training: return graph_module), or "
_FOR_A_RUN = "; --fx-inference asks for no gradients in a run"


def with_ways_out(
    violation: LawViolation, others: Sequence[LawViolation], pass_: Any, mode: str, earlier: Sequence[str] = ()
) -> LawViolation:
    """Return ``violation`` with a line for each other broken law, and advice how the pass can declare these changes.

    ``mode`` is the mode of the program. ``earlier`` names laws that the pass breaks on another program. A pass that
    computes wrong values is a mistake, and gets no advice.
    """
    names = {violation.law, *(each.law for each in others), *earlier}
    violation = violation.with_others(others)
    laws = [law for law in TABLE if law.name in names]  # without the user's own laws
    kinds = tuple(dict.fromkeys(law.may_change for law in laws if law.may_change))
    is_mistaken = any(law.judges == "values" and not law.may_change for law in laws)
    # If a single other law is broken, its own remedy already gives this advice.
    if pass_ is None or is_mistaken or not ("gradients" in kinds or len(kinds) > 1):
        return violation
    is_for_inference = "gradients" in kinds
    alone = _ALONE if is_for_inference and mode == "train" else ""
    reason = "is for inference" if is_for_inference else "changes these on purpose"
    line = f"{alone}say that the pass {reason}: {_declaration(pass_, kinds)}{_FOR_A_RUN if is_for_inference else ''}"
    return violation.with_details(f"  try    {line}")


def form_lines(pass_run: PassRun) -> list[str]:
    """Return lines on the form of a pass, and on the level of the exported program that it got; none for ours."""
    pass_, result = pass_run.pass_, pass_run.form_result
    if not isinstance(pass_, FormedPass):
        return []
    lines = [f"  form   {pass_.form.name}: the pass gets {pass_.form.takes} (--fx-form)"]
    every = FormedPass(pass_.pass_, pass_.form).levels
    if result is not None and pass_.form.is_exported and len(every) > 1:
        others = " and ".join(level for level in every if level != result.level)
        lines.append(
            f"  level  {result.level}: it is judged at each level at which it acts; if it is not meant for this one, "
            f"say so by its attribute levels, which names some of {others}"
        )
    return lines


def with_form(violation: LawViolation, pass_run: PassRun) -> LawViolation:
    """Return ``violation`` with the lines on the form of its pass."""
    lines = form_lines(pass_run)
    return violation.with_details("\n".join(lines)) if lines else violation


def _declaration(pass_: Any, kinds: tuple[str, ...]) -> str:
    """Return the line of Python by which a function or class declares that it changes ``kinds`` on purpose."""
    inner = unwrapped(pass_)
    listed = says_may_change(dict.fromkeys((*getattr(inner, "may_change", ()), *kinds)))
    if isinstance(inner, FunctionType) and inner.__name__.isidentifier():
        return f"{inner.__name__}.{listed}"
    if isinstance(inner, (FunctionType, PassPipeline)):
        return f"my_pass.{listed}"
    kind = inner if isinstance(inner, type) else type(inner)
    return f"{listed} in the class {kind.__name__}"
