"""Needs: what a run of a program found that another run has to represent or record otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run does otherwise than one without needs."""

    calls: bool = False
    """Calls of Python's classes (``int(x)``), and of methods of concrete tensors, are recorded with traced values."""
    namespaces: tuple[dict[str, Any], ...] = ()
    """The globals of code that has called such classes."""
    methods: frozenset[str] = frozenset()
    """The methods of tensors that were called."""
    given: bool = False
    """Optional inputs that the program asks for are given, and not left out."""
    how: str = ""
    """The end of "it fails too" for the user: how the run differs from the first one."""


NO_NEEDS = Needs()
"""The needs of a first run."""
