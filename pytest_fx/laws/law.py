"""The record of a law, and the texts of its violations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from fx.argument_types import checked
from fx.errors import FxError
from pytest_fx.errors import LawError, LawViolation
from pytest_fx.harness.pass_run import PassRun

Check = Callable[["PassRun"], None]
"""Function that raises :class:`LawViolation` if its law is broken."""


MOST_LINES = 6
"""Number of lines shown of another library's message."""


@checked(LawError)
@dataclass(frozen=True, slots=True)
class Law:
    """One law: a row of the table."""

    name: str
    """Name by which options switch the law off or demand it."""
    check: Check
    """Function that checks the law."""
    kind: Literal["always", "sampled", "demanded"] = "always"
    """``"always"``: on each program; ``"sampled"``: on some programs, since it is slow; ``"demanded"``: on request."""
    when_unchanged: bool = False
    """True if a pass that leaves the program unchanged can break the law."""
    may_change: str = ""
    """Entry of a pass's ``may_change`` that excuses the pass from the law; see ``fx.passes.PassPipeline``."""
    judges: Literal["", "kinds", "values", "gradients", "refusals"] = ""
    """Aspect of the computed results that the law is about: ``"values"``; their ``"kinds"`` (structure, shape, dtype);
    ``"gradients"``; ``"refusals"`` of inputs. These laws are reported first, and a report names the first node with
    different values, kinds or gradients. Empty: the law is about the pass or the program itself."""
    calls: int = 0
    """Number of calls and captures, of a small model and its program, that the law takes beside those of the contract
    law. A test measures it for the laws of the table."""
    of: Literal["passes", "programs", "forms", "transforms", "all"] = "passes"
    """Programs that the law is about: results of ``"passes"`` on a capture, of passes in other ``"forms"``, of both
    (``"transforms"``), other ``"programs"``, or ``"all"``."""
    more_inputs: bool = False
    """True if the law calls or differentiates the program on inputs other than its input sets. The law is left out
    if the caller chose the number of input sets."""
    unless_approximate: bool = False
    """True if the law does not apply to a pass whose contract is ``approximate``."""
    leaves_only: bool = False
    """True if a model of full size is checked with leaf modules only, and not once more in functions."""
    says_less: bool = False
    """True if a search that finds the law broken goes on: wrong values on ordinary inputs say more about a pass."""
    small_only: bool = False
    """True if the law is not checked on a model of full size, although it takes few calls. Such a law copies or saves
    the model, applies the pass again, or breaks checks and arithmetic on purpose."""

    def find_violation(self, pass_run: PassRun) -> LawViolation | None:
        """Return the violation of this law by ``pass_run``, or ``None`` if the law is kept.

        Raises:
            LawError: the function reports that another law is broken.
        """
        try:
            self.check(pass_run)
        except LawViolation as violation:
            if violation.law != self.name:
                raise LawError(
                    f"the law {self.name!r} reports that the law {violation.law!r} is broken",
                    value=str(violation).partition("\n")[0],
                    why="a broken law is checked again by its name, while a program is made smaller",
                    remedy=f"let it raise LawViolation({self.name!r}, …), or make it Law({violation.law!r}, …)",
                ) from violation
            violation.__traceback__ = None  # its frames are ours, and keep tensors alive
            return violation
        return None

    @property
    def summary(self) -> str:
        """First paragraph of the check's docstring, on one line."""
        return " ".join((self.check.__doc__ or "").partition("\n\n")[0].split())


def failure_class(error: BaseException) -> str:
    """Return the key by which equal failures are grouped: type and first line, with ``#`` for each number.

    >>> failure_class(ValueError("size 3 is not 4"))
    'ValueError: size # is not #'
    """
    first = re.sub(r"\d+", "#", str(error).partition("\n")[0])
    return f"{type(error).__name__}: {first}"


def in_brief(error: BaseException) -> str:
    """Return the type and first paragraph of an error, indented for a message; at most ``MOST_LINES`` lines.

    >>> print(in_brief(ValueError("no such size\\nHint: try 2\\n\\nSet a variable for all frames.")))
    ValueError: no such size
             Hint: try 2
    """
    lines = str(error).strip().partition("\n\n")[0].splitlines()[:MOST_LINES] or [""]
    return "\n         ".join([f"{type(error).__name__}: {lines[0]}", *map(str.strip, lines[1:])])


def said(error: BaseException) -> str:
    """Return the text of an error, indented for a message; with its type unless it is an ``FxError``."""
    text = str(error) if isinstance(error, FxError) else f"{type(error).__name__}: {error}"
    return text.replace("\n", "\n         ")


def broken(name: str, what: str, **parts: Any) -> NoReturn:
    """Raise the violation of a law."""
    raise LawViolation(name, what, **parts)
