"""Passes by which the harness is tested: wrong ones as engineers write them, each with a program that shows it,
and right ones. Kinds of mistakes are files: ``operands``, ``shapes``, ``uses``, ``effects``, ``values``, ``interface``,
``state`` and ``plumbing``; ``correct`` holds the passes without one.
"""

from . import correct, effects, interface, operands, plumbing, shapes, state, uses, values
from .rows import RIGHT, WRONG, Right, Wrong

__all__ = [
    "RIGHT",
    "WRONG",
    "Right",
    "Wrong",
    "correct",
    "effects",
    "interface",
    "operands",
    "plumbing",
    "shapes",
    "state",
    "uses",
    "values",
]
