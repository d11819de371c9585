"""A pass that fails on a model: all that it takes to see it fail again, and whether another failure is the same one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from fx.passes import Contract, Pass
from pytest_fx.comparison.evaluation import default_dtype
from pytest_fx.comparison.subject import Subject
from pytest_fx.comparison.verification import failure_class, require, verify
from pytest_fx.errors import ContractViolation

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
    error: Exception
    """How it failed: a broken contract, or whatever the pass raised."""
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
        first = str(self.error).partition("\n")[0]
        if isinstance(self.error, ContractViolation):
            return first
        return f"{self.label} fails on {self.subject.name} with {type(self.error).__name__}: {first}"

    @property
    def slug(self) -> str:
        """A name for files, the same whenever the same test finds a failure of the same pass on the same model."""
        model = self.subject.name.rpartition(":")[2]
        name = re.sub(r"\W+", "_", f"{self.label}_{model}").strip("_").lower()[:LONGEST_NAME]
        return f"{name}_{hashlib.sha1(f'{self.test} {self.label}'.encode()).hexdigest()[:6]}"

    def is_repeated_by(self, subject: Subject) -> bool:
        """Whether the pass fails on ``subject`` as it did: with the same kind of violation, or the same exception."""
        try:
            with default_dtype(self.subject.dtype):
                require(verify(subject, self.pass_, self.contract, self.label).comparison, self.contract)
        except Exception as error:
            return failure_class(error) == failure_class(self.error)
        return False
