"""What a law is, and what breaking one raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from fx.arguments import expect, expect_callable, refusal
from fx.errors import FxError
from pytest_fx.errors import LawError, LawViolation
from pytest_fx.harness.pass_run import PassRun

Check = Callable[["PassRun"], None]
"""Raises :class:`LawViolation` if a law is broken."""


MOST_LINES = 6
"""Lines of another library's message that are shown."""
KINDS = ("always", "sampled", "demanded")
"""When a law is checked."""
KEPT_BY = ("passes", "programs", "forms", "transforms", "all")
"""The kinds of programs that a law is about."""
JUDGED = ("", "kinds", "values", "gradients", "refusals")
"""What of a program's output a law is about."""


@dataclass(frozen=True, slots=True)
class Law:
    """One law, as the table has it."""

    name: str
    """What it is called."""
    check: Check
    """The function."""
    kind: str = "always"
    """``"always"``: checked on each program; ``"sampled"``: slow, checked on some; ``"demanded"``: only on request."""
    when_unchanged: bool = False
    """Whether a pass can break it that leaves the program as it was."""
    may_change: str = ""
    """What a pass lists in ``may_change`` where the law is not meant for it; see ``fx.passes.PassPipeline``."""
    judges: str = ""
    """What it is about of that which is computed: ``"values"``; their ``"kinds"``, structure, shape and dtype;
    ``"gradients"``; ``"refusals"`` of inputs. Of several broken laws, these are reported first. The first node is shown
    that computes other values, kinds or gradients. Empty: it is about the pass or the program as such."""
    calls: int = 0
    """How many calls it takes of a small model and its program, and captures of them, beside those that the contract
    takes. A test measures it for the laws of the table."""
    of: str = "passes"
    """The programs that it is about: results of ``"passes"`` on what was captured, of passes in other ``"forms"``, of
    ``"transforms"``, which are both, other ``"programs"``, or ``"all"``."""
    more_inputs: bool = False
    """Whether the program is called or differentiated otherwise than with its input sets; such a law is left out where
    these are asked for by number."""
    unless_approximate: bool = False
    """Whether it is not meant for a pass whose contract is ``approximate``."""
    leaves_only: bool = False
    """Whether a model of full size is held to it with leaf modules alone, and not once more in functions."""
    says_less: bool = False
    """Whether a search that finds it broken goes on: wrong values on ordinary inputs say more about a pass."""
    small_only: bool = False
    """Whether a model of full size is not held to it, though it takes few calls: it copies or saves the model, applies
    the pass again, or breaks checks and arithmetic on purpose."""

    def __post_init__(self) -> None:
        """Refuse what is not a law."""
        expect(self.name, str, "the name of a law is a string", error=LawError)
        expect_callable(self.check, "a law is a function that is given a PassRun", error=LawError)
        if self.kind not in KINDS:
            raise refusal(f"the kind of a law is one of {', '.join(map(repr, KINDS))}", self.kind, error=LawError)
        if self.of not in KEPT_BY:
            raise refusal(f"a law is one of {', '.join(map(repr, KEPT_BY))}", self.of, error=LawError)
        if self.judges not in JUDGED:
            raise refusal(f"a law judges one of {', '.join(map(repr, JUDGED))}", self.judges, error=LawError)

    def find_violation(self, pass_run: PassRun) -> LawViolation | None:
        """Return how ``pass_run`` breaks this law, or ``None`` where it keeps it.

        Raises:
            LawError: the function says that another law is broken.
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
            violation.__traceback__ = None  # whose frames are ours, and hold what was computed
            return violation
        return None

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return " ".join((self.check.__doc__ or "").partition("\n\n")[0].split())


def failure_class(error: BaseException) -> str:
    """Return what two failures have in common that are the same one: type and first line, whatever the numbers.

    >>> failure_class(ValueError("size 3 is not 4"))
    'ValueError: size # is not #'
    """
    first = re.sub(r"\d+", "#", str(error).partition("\n")[0])
    return f"{type(error).__name__}: {first}"


def in_brief(error: BaseException) -> str:
    """Return the type and the first paragraph of an error, as a part of a message has it: hints are further lines.

    >>> print(in_brief(ValueError("no such size\\nHint: try 2\\n\\nSet a variable for all frames.")))
    ValueError: no such size
             Hint: try 2
    """
    lines = str(error).strip().partition("\n\n")[0].splitlines()[:MOST_LINES] or [""]
    return "\n         ".join([f"{type(error).__name__}: {lines[0]}", *map(str.strip, lines[1:])])


def said(error: BaseException) -> str:
    """Return what an error says, as a part of a message has it."""
    text = str(error) if isinstance(error, FxError) else f"{type(error).__name__}: {error}"
    return text.replace("\n", "\n         ")


def broken(name: str, what: str, **parts: Any) -> NoReturn:
    """Raise the violation of a law."""
    raise LawViolation(name, what, **parts)
