"""A fault of a compiler: the broken law, the smallest program found, and the key by which faults are grouped."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from pytest_fx.errors import LawViolation
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.search.exploration import called_names
from pytest_fx.search.values_as_text import WrittenInputs

_PLUMBING = frozenset(("super", "__init__", "Program", "manual_seed", "eval", "train", "getitem"))
"""Called names that say nothing about a program."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken law on the smallest program found."""

    law: str
    """The name of the law."""
    shape: tuple[str, ...]
    """The operations of the program in order, or the kind of a crash."""
    source: str
    """The text of the program, with ``build()`` and ``inputs()``."""
    mode: str
    """``"eval"`` or ``"train"``."""
    message: str
    """The message of the violation."""
    inputs: str = ""
    """Text of the positional arguments that break the law, if they are not those of ``source``."""

    @property
    def key(self) -> str:
        """The name of the fault in files: the law and the operations, or a digest of many."""
        name = " ".join([self.law.replace(" ", "-"), *self.shape]) if self.shape else f"{self.law} (no operation)"
        return name if len(name) < 120 else f"{name[:100]} {hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def explains(self, law: str, operations: Counter[str]) -> bool:
        """Return whether a program with these operations, which breaks ``law``, may show this fault alone."""
        return law == self.law and bool(self.shape) and Counter(self.shape) <= operations

    def as_record(self) -> dict[str, Any]:
        """Return the fault as plain data."""
        return {**asdict(self), "key": self.key}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Fault:
        """Return the fault of :meth:`as_record`."""
        values = {name: record[name] for name in ("law", "source", "mode", "message", "inputs")}
        return cls(shape=tuple(record["shape"]), **values)


def operations_of(source: str) -> tuple[str, ...]:
    """Return the operations that the class of a program calls, without the text that makes its inputs."""
    program = source.partition("\ndef build")[0]
    return tuple(name for name in called_names(program) if name not in _PLUMBING)


def fault_of(violation: LawViolation, source: str, mode: str, arguments: Arguments | None) -> Fault:
    """Return the fault of a violation on the smallest program; ``arguments`` broke the law, unless they are None."""
    written = "" if arguments is None or arguments.kwargs else WrittenInputs.of(arguments.args).text
    message = str(violation).partition("\nfound after")[0]
    return Fault(violation.law, operations_of(source), source, mode, message, written)
