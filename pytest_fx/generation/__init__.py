"""Random programs for property tests: ``programs()`` and the smaller strategies that it uses."""

from typing import Any, NamedTuple

from pytest_fx.generation.record import Input, Program
from pytest_fx.generation.strategy import programs
from pytest_fx.generation.tensor_expressions import shapes, tensors

__all__ = ["Input", "Pair", "Program", "programs", "shapes", "tensors"]


class Pair(NamedTuple):
    """A named tuple that drawn programs return."""

    first: Any
    """The first value."""
    rest: Any
    """All other values."""
