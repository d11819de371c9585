"""Small decisions, drawn so that the first alternative is the one that shrinking goes to."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


@functools.lru_cache(maxsize=1024)
def _up_to(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


class Choices:
    """Decisions of one example, drawn through Hypothesis one integer each: few and small, so that drawing is fast."""

    __slots__ = ("draw",)

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def below(self, count: int) -> int:
        """An integer from 0 to ``count - 1``; nothing is drawn where there is no choice."""
        return self.draw(_up_to(count)) if count > 1 else 0

    def pick(self, alternatives: Sequence[T]) -> T:
        """One of ``alternatives``, the first after shrinking."""
        return alternatives[self.below(len(alternatives))]

    def sometimes(self, one_in: int) -> bool:
        """True in one of ``one_in`` examples, False after shrinking."""
        return self.below(one_in) == one_in - 1

    def mostly(self, one_in: int) -> bool:
        """False in one of ``one_in`` examples and after shrinking."""
        return self.below(one_in) != 0

    def recent(self, values: Sequence[T]) -> T:
        """One of ``values``, the last one in half of the examples and after shrinking."""
        count = len(values)
        number = self.below(2 * count) if count > 1 else 0
        return values[-1 - max(0, number - count)]


class Drawing(Protocol):
    """What rows of the grammar see of the program that is being written."""

    choices: Choices
    """Decides."""
    constants: tuple[float | str, ...]
    """Arguments that are to be frequent."""
