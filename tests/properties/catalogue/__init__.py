"""Passes by which the harness is tested: wrong ones as engineers write them, each with a program that shows it,
and right ones. Kinds of mistakes are files: ``operands``, ``shapes``, ``uses``, ``effects``, ``values``, ``interface``,
``state``, ``plumbing``, ``fusions``, ``algebra``, ``planning`` and ``rare``; ``correct`` and
``correct_by_api`` hold the passes without one, ``arguments`` and ``options`` some of either.
"""

from . import (
    algebra,
    arguments,
    correct,
    correct_by_api,
    effects,
    fusions,
    interface,
    operands,
    options,
    planning,
    plumbing,
    rare,
    shapes,
    state,
    uses,
    values,
)
from .rows import RIGHT, WRONG, Right, Wrong

__all__ = [
    "RIGHT",
    "WRONG",
    "Right",
    "Wrong",
    "algebra",
    "arguments",
    "correct",
    "correct_by_api",
    "effects",
    "fusions",
    "interface",
    "operands",
    "options",
    "planning",
    "plumbing",
    "rare",
    "shapes",
    "state",
    "uses",
    "values",
]
