"""Where fx differs from torch.fx on purpose, row by row; ``docs/differences.md`` explains each topic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One comparison of the corpus that must *not* come out equal."""

    program: str
    """The program's name, or ``*`` for all."""
    aspect: str
    """What is compared: ``nodes``, ``print``, ``code``, ``run``, ``retrace``, ..."""
    topic: str
    """The heading of ``docs/differences.md`` that gives the reason."""


DIFFERENCES: tuple[Difference, ...] = ()


def is_intended(program: str, aspect: str) -> bool:
    """Whether the table says that this comparison differs."""
    return any(row.program in (program, "*") and row.aspect == aspect for row in DIFFERENCES)


def assert_equal_unless_intended(ours: object, theirs: object, program: str, aspect: str) -> None:
    """Compare, and hold the table to its word: a listed difference that is gone fails too."""
    if is_intended(program, aspect):
        assert ours != theirs, f"{program} no longer differs in {aspect}: drop it from the table of differences"
    else:
        assert ours == theirs
