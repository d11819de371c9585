"""What the writer of a pass can do that breaks laws on purpose: one line, with all that the pass may say at once."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from fx.interop import AdaptedPass
from fx.passes import PassPipeline
from fx.passes.verification import says_may_change
from pytest_fx.errors import LawViolation
from pytest_fx.laws import TABLE

_ALONE = "leave programs in training mode alone (if graph_module.training: return graph_module), or "
_FOR_A_RUN = "; --fx-inference asks for no gradients in a run"


def with_ways_out(
    violation: LawViolation, others: Sequence[LawViolation], pass_: Any, mode: str, earlier: Sequence[str] = ()
) -> LawViolation:
    """Return a violation with a line on each other law that is broken, and one on how the pass may say that it does so.

    ``mode`` is that of the program, and ``earlier`` has the names of laws that the pass breaks on another one. There is
    no such line where a pass computes other values: that is a mistake.
    """
    names = {violation.law, *(each.law for each in others), *earlier}
    violation = violation.with_others(others)
    laws = [law for law in TABLE if law.name in names]  # not those of a user's
    kinds = tuple(dict.fromkeys(law.may_change for law in laws if law.may_change))
    is_mistaken = any(law.judges == "values" and not law.may_change for law in laws)
    # Other laws have a remedy of their own, which says so where one of them is broken alone.
    if pass_ is None or is_mistaken or not ("gradients" in kinds or len(kinds) > 1):
        return violation
    is_for_inference = "gradients" in kinds
    alone = _ALONE if is_for_inference and mode == "train" else ""
    reason = "is for inference" if is_for_inference else "changes these on purpose"
    line = f"{alone}say that the pass {reason}: {_said(pass_, kinds)}{_FOR_A_RUN if is_for_inference else ''}"
    return violation.with_details(f"  try    {line}")


def _said(pass_: Any, kinds: tuple[str, ...]) -> str:
    """Return the line of Python by which a function, or a class, says what it changes on purpose."""
    inner = pass_.pass_ if isinstance(pass_, AdaptedPass) else pass_
    listed = says_may_change(dict.fromkeys((*getattr(inner, "may_change", ()), *kinds)))
    if isinstance(inner, FunctionType) and inner.__name__.isidentifier():
        return f"{inner.__name__}.{listed}"
    if isinstance(inner, (FunctionType, PassPipeline)):
        return f"my_pass.{listed}"
    kind = inner if isinstance(inner, type) else type(inner)
    return f"{listed} in the class {kind.__name__}"
