"""The verdicts of the harness on passes, models and runs of pytest that were once judged wrongly.

A case has the right verdict: *red* with the broken law, *green*, or *said* with words that pytest must print. Each was
once judged the other way, or not at all. Each red case has a green one beside it, which does the same correctly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Models of users are shared with the tests of the plugin.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pytest_fx"))


@dataclass(frozen=True, slots=True)
class Case:
    """A pass or a run, and its right verdict."""

    item: str
    """The subject of the case, in a few words."""
    says: str
    """The pass, the model or the command."""
    expected: str
    """``green``, ``said``, ``unjudged``, or ``red`` and laws that are reported."""
    judge: Callable[[], str]
    """Asks the harness."""

    def is_right(self, answer: str) -> bool:
        """Return True if the answer is right: beside the expected laws, others may be reported."""
        if not self.expected.startswith("red"):
            return answer == self.expected
        return answer.startswith("red") and _laws(self.expected) <= _laws(answer)


def _laws(answer: str) -> set[str]:
    return set(answer.removeprefix("red").removeprefix(": ").split(", ")) - {""}


CASES: list[Case] = []


def case(item: str, says: str, expected: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Enter a case."""

    def enter(judge: Callable[[], str]) -> Callable[[], str]:
        CASES.append(Case(item, says, expected, judge))
        return judge

    return enter


from . import asked, judged, quantized, reported, users_models  # noqa: E402  # they enter their cases

__all__ = ["CASES", "Case", "asked", "case", "judged", "quantized", "reported", "users_models"]
