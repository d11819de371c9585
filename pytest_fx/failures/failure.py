"""A pass that fails on a model: all that reproduces the failure, and a test of whether another failure is the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fx.passes import Contract, Pass
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Inputs, Subject
from pytest_fx.laws import LawViolation, broken_laws, law_called

LONGEST_NAME = 40
"""Letters of the pass and the model in the names of files."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a pass on a model, and how it was found."""

    subject: Subject
    """The model."""
    pass_: Pass
    """The pass."""
    contract: Contract
    """The contract that it was checked against."""
    error: LawViolation
    """The violation that was found."""
    label: str
    """The pass as messages call it."""
    pass_name: str | None
    """The pass as ``--fx-pass`` takes it; None if it cannot be imported."""
    leaves: bool = True
    """Whether the program was captured with leaf modules."""
    test: str = ""
    """The test that found it."""
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keywords of the marker ``fx`` that select the model as the test did; empty if it cannot be imported by name."""

    @property
    def first_line(self) -> str:
        """The failure in one line."""
        return str(self.error).partition("\n")[0]

    @property
    def slug(self) -> str:
        """A name for files: the same whenever the same test finds a failure of the same pass on the same model."""
        model = self.subject.name.rpartition(":")[2]
        name = re.sub(r"\W+", "_", f"{self.label}_{model}").strip("_").lower()[:LONGEST_NAME]
        return f"{name}_{hashlib.sha1(f'{self.test} {self.label}'.encode()).hexdigest()[:6]}"

    def applied(self, subject: Subject | None = None, *, leaves: bool | None = None, **how: Any) -> PassRun:
        """Apply the pass once more, to ``subject`` in the place of the model if it is not None."""
        leaves = self.leaves if leaves is None else leaves
        return PassRun(
            subject or self.subject, self.pass_, contract=self.contract, leaves=leaves, label=self.label, **how
        )

    def error_on(self, subject: Subject, *, looks_twice: bool = True) -> float | None:
        """Return the error of the outputs relative to their size if the pass fails on ``subject`` as it did, or None.

        It fails as it did if it breaks the same law in the same way. For laws that do not judge values the error is 0.

        Args:
            subject: a part of the model.
            looks_twice: whether to use all of its input sets and to check each violation a second time, as on a model;
                that takes most of the time.
        """
        law = law_called(self.error.law)
        try:
            pass_run = self.applied(subject, leaves=True, input_set_count=None if looks_twice else 1)
            pass_run.looks_twice = looks_twice
            alike = [each for each in broken_laws([law], pass_run) if _way(each.kind) == _way(self.error.kind)]
            return None if not alike else _error(pass_run, alike[0].inputs) if law.judges == "values" else 0.0
        except Exception:  # a part that cannot be captured or called may raise anything
            return None


def _way(kind: str) -> str:
    """Return a kind of violation without its dtype: one in float64 may be of rounding in a part of the model.

    >>> _way("rounding of output")
    'values of output'
    """
    return re.sub("^rounding of ", "values of ", kind)


def _error(pass_run: PassRun, inputs: Inputs) -> float:
    """Return the largest error of an output, relative to its largest element."""
    pairs = pair_leaves(pass_run.eager(inputs).output, pass_run.actual(inputs).output)
    if isinstance(pairs, Mismatch):
        return float("inf")
    return max((leaf.largest_error / (leaf.scale or 1.0) for leaf in pairs), default=0.0)
