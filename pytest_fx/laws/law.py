"""What a law is, and what breaking one raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from fx.errors import FxError

if TYPE_CHECKING:
    from .example import Example


class LawViolation(FxError, AssertionError):
    """A pass breaks a law on some program. The message has the law's name, what differs and why it matters."""

    def __init__(
        self,
        law: str,
        what: str,
        *,
        where: object | None = None,
        value: object | None = None,
        why: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """``law`` is the name of the law; the rest makes the message."""
        super().__init__(f"law {law!r}: {what}", where=where, value=value, why=why, remedy=remedy)
        self.law = law

    @classmethod
    def of(cls, law: str, error: Exception) -> LawViolation:
        """A violation that says what ``error`` says."""
        violation = cls(law, "")
        violation.args = (f"law {law!r}: {error}",)
        return violation

    def with_details(self, text: str) -> LawViolation:
        """Return the same violation with ``text`` below its message."""
        detailed = LawViolation(self.law, "")
        detailed.args = (f"{self}\n{text}",)
        return detailed


Check = Callable[["Example"], None]
"""Raises :class:`LawViolation` if a law is broken."""


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

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return " ".join((self.check.__doc__ or "").partition("\n\n")[0].split())


def broken(name: str, what: str, **parts: Any) -> NoReturn:
    """Raise the violation of a law."""
    raise LawViolation(name, what, **parts)
