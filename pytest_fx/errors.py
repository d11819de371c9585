"""What the plugin reports: a program that computes something else, and names that lead nowhere."""

from __future__ import annotations

from fx.errors import FxError


class ContractViolation(FxError, AssertionError):
    """A transformed program breaks the contract of its pass. The message has the place and both values."""

    def __init__(
        self,
        what: str,
        *,
        where: object | None = None,
        value: object | None = None,
        why: str | None = None,
        remedy: str | None = None,
        kind: str = "values",
    ) -> None:
        """``kind`` says in a word or two what is broken: two violations of one kind are one failure."""
        super().__init__(what, where=where, value=value, why=why, remedy=remedy)
        self.kind = kind

    def with_message(self, text: str) -> ContractViolation:
        """Return the same violation with another message."""
        violation = ContractViolation("", kind=self.kind)
        violation.args = (text,)
        return violation


class ComparisonError(FxError, TypeError):
    """What a model returns cannot be compared, whatever a pass does to it. The message says where it is."""


class MemoryLayoutWarning(UserWarning):
    """A program keeps its contract, but answers in memory of another layout, or shared with other tensors.

    ``-W error::pytest_fx.errors.MemoryLayoutWarning`` makes a failure of it, ``-W ignore::…`` silences it.
    """


class LoadError(FxError, LookupError):
    """A name on the command line leads to no model and no pass. The message lists the nearest names."""


class TimingRegression(FxError, AssertionError):
    """A program takes longer, relative to eager, than in the run that ``--fx-baseline`` names, by more than is allowed.

    The message has both speed-ups with their intervals and where each was measured.
    """
