"""Where an answer follows from an infinity: the same arithmetic in another order may have NaN there."""

from __future__ import annotations

import math
from typing import Any

import torch

from fx import Interpreter, Node
from pytest_fx.comparison.structure import leaves

from .example import Example
from .runs import Run, Runner, by

LARGE = 1e9
"""Numbers above it count as infinite where it is asked whether a program is given any: they soon overflow."""


def without_infinities(example: Example, variant: str) -> list[Run]:
    """Return what eager does with NaN, and with 0, for each infinite value; nothing if it gets no extreme numbers.

    What differs from eager's own answer follows from an infinity. ``F.gelu(inf)`` is NaN where ``inf * 0.5 * (1 +
    erf(inf))`` and its sigmoid are not; the softmax of infinities alone is NaN where attention answers 0. A program
    that masks with infinities, but is given ordinary numbers, has its answers from these.
    """
    arguments = example.arguments(variant)
    assert arguments is not None
    held = example.reference.state_dict().values()
    if not any(_is_extreme(tensor) for tensor in (*arguments.tensors, *held)):
        return []
    programs = {value: example.capture() for value in (math.nan, 0.0)}
    return [
        Runner(program, by(Poisoned(program, value)))(arguments, example.dtype) for value, program in programs.items()
    ]


def _is_extreme(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not bool((tensor.abs() < LARGE).all())


class Poisoned(Interpreter):
    """Runs a program, and puts a value in place of each infinite element that it computes or is given."""

    def __init__(self, program: Any, value: float) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._value = value

    def run_node(self, n: Node) -> Any:
        """Run the node, and replace what is infinite in its value."""
        value = super().run_node(n)
        if n.op not in ("get_attr", "output"):
            for _, leaf in leaves(value):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and bool(leaf.isinf().any()):
                    leaf.data[leaf.isinf()] = self._value
        return value
