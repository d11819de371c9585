"""A pass that fails on a model: all that it takes to see it fail again, and whether another failure is the same one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from fx.passes import Contract, Pass
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import LawViolation, broken_laws, law_called

LONGEST_NAME = 40
"""Letters of the pass and the model in the names of files."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What was found, and how."""

    subject: Subject
    """The model."""
    pass_: Pass
    """The pass."""
    contract: Contract
    """What it was held to."""
    error: LawViolation
    """How it failed."""
    label: str
    """What messages call the pass."""
    pass_name: str | None
    """The pass as ``--fx-pass`` takes it; None if it cannot be imported."""
    leaves: bool = True
    """Whether the program was captured with leaf modules."""
    test: str = ""
    """The test that found it."""

    @property
    def first_line(self) -> str:
        """The failure in one line."""
        return str(self.error).partition("\n")[0]

    @property
    def slug(self) -> str:
        """A name for files, the same whenever the same test finds a failure of the same pass on the same model."""
        model = self.subject.name.rpartition(":")[2]
        name = re.sub(r"\W+", "_", f"{self.label}_{model}").strip("_").lower()[:LONGEST_NAME]
        return f"{name}_{hashlib.sha1(f'{self.test} {self.label}'.encode()).hexdigest()[:6]}"

    def applied(self, subject: Subject | None = None, *, leaves: bool | None = None) -> PassRun:
        """The pass, applied once more, to ``subject`` in the place of the model if that is given."""
        return PassRun(
            subject or self.subject,
            self.pass_,
            contract=self.contract,
            leaves=self.leaves if leaves is None else leaves,
            label=self.label,
        )

    def is_repeated_by(self, subject: Subject) -> bool:
        """Return whether the pass fails on ``subject`` as it did: it breaks the same law in the same way."""
        try:
            violations = broken_laws([law_called(self.error.law)], self.applied(subject, leaves=True))
        except Exception:  # whatever a part of a model raises that cannot be captured or called
            return False
        return any(violation.kind == self.error.kind for violation in violations)
