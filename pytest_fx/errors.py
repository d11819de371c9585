"""What the plugin reports: a program that computes something else, and names that lead nowhere."""

from __future__ import annotations

from fx.errors import FxError


class ContractViolation(FxError, AssertionError):
    """A transformed program breaks the contract of its pass. The message has the place and both values."""

    def with_details(self, text: str) -> ContractViolation:
        """Return the same violation with ``text`` below its message."""
        detailed = ContractViolation("")
        detailed.args = (f"{self}\n{text}",)
        return detailed


class LoadError(FxError, LookupError):
    """A name on the command line leads to no model and no pass. The message lists the nearest names."""


class TimingRegression(FxError, AssertionError):
    """A program takes longer, relative to eager, than in the run that ``--fx-baseline`` names, by more than is allowed.

    The message has both speed-ups with their intervals and where each was measured.
    """
