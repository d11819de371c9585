"""Where an output follows from an infinity: the same arithmetic in another order may have NaN there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch

from fx import Interpreter, Node
from fx.operators.effects import effect_of
from fx.operators.families import CASTS
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run, by
from pytest_fx.harness.snapshot import dense, in_pieces, is_finite, is_plain, is_strided
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.harness.subject import Inputs, Subject

LARGE = 1e9
"""Numbers above it count as infinite where it is asked whether a program is given any: they soon overflow."""
_CASTS = frozenset({"to", "type", "type_as", *CASTS})


class WithoutInfinities(NamedTuple):
    """What becomes of eager where other values stand for infinite ones."""

    runs: list[Run]
    """What eager does with NaN, 0 and 1 for each infinite value, be it given or an overflow; none if none is."""
    overflows: bool
    """Whether there are infinite values though all that is given is finite."""


def without_infinities(pass_run: PassRun, inputs: Inputs) -> WithoutInfinities:
    """Run eager with NaN, with 0 and with 1 for each infinite value.

    What differs from eager's own output follows from an infinity. ``F.gelu(inf)`` is NaN where ``inf * 0.5 * (1 +
    erf(inf))`` and its sigmoid are not; the softmax of infinities alone is NaN where attention returns 0; and
    ``(300 * x).half()`` is infinite where ``300 * x.half()`` may not be. A program that masks with infinities, but is
    given ordinary numbers that do not overflow, has its outputs from these.
    """
    return pass_run.once(("without infinities", inputs), lambda: _without_infinities(pass_run, inputs))


def _without_infinities(pass_run: PassRun, inputs: Inputs) -> WithoutInfinities:
    subject = pass_run.subject
    if subject.capture_error is not None:  # it is not known which operations overflow
        return WithoutInfinities([], overflows=False)
    program = pass_run.untouched().after
    arguments = subject.arguments(inputs)
    given = any(map(_is_extreme, _floating_point(arguments, subject)))
    runs: list[Run] = []
    for value in (math.nan, 0.0, 1.0):  # inf / inf is NaN, and so are 0 / 0 and NaN / NaN, but not 1 / 1
        poisoned = Poisoned(program, value, everywhere=given)
        runs.append(subject.run_in_a_row(subject.runner(poisoned.module, by(poisoned)), inputs)[-1])
        if not poisoned.replaced:
            return WithoutInfinities([], overflows=False)
    return WithoutInfinities(runs, overflows=all(map(is_finite, _floating_point(arguments, subject))))


def has_infinities(pass_run: PassRun, inputs: Inputs) -> bool:
    """Return whether any value that eager computes of these inputs is infinite; False if it cannot be captured."""
    subject = pass_run.subject
    if subject.capture_error is not None:
        return False
    poisoned = Poisoned(pass_run.untouched().after, 0.0, everywhere=True)
    subject.run_in_a_row(subject.runner(poisoned.module, by(poisoned)), inputs)
    return poisoned.replaced


def _floating_point(arguments: Arguments, subject: Subject) -> Iterator[torch.Tensor]:
    """The tensors of that kind among all that is given, one at a time."""
    every = chain(arguments.tensors, subject.tensors.values())
    return (tensor for tensor in every if tensor.is_floating_point() and is_plain(tensor))


def _is_extreme(tensor: torch.Tensor) -> bool:
    return not all(bool((piece.abs() < LARGE).all()) for (piece,) in in_pieces(dense(tensor)))


class Poisoned(Interpreter):
    """Runs a program, and puts a value in place of each element that is infinite, or of those that overflow."""

    def __init__(self, program: Any, value: float, everywhere: bool) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._value = value
        self._everywhere = everywhere
        self.replaced = False
        """Whether there was anything to replace."""

    def run_node(self, n: Node) -> Any:
        """Run the node, and replace what is infinite in its value."""
        value = super().run_node(n)
        if n.op not in ("get_attr", "output"):
            for _, leaf in leaves(value):
                if _has_infinities(leaf) and (self._everywhere or self._overflows(n, leaf)):
                    leaf.data[leaf.isinf()] = self._value
                    self.replaced = True
        return value

    def _overflows(self, node: Node, value: torch.Tensor) -> bool:
        """Return whether ``value`` is infinite because its dtype ends there: not at a pole, nor by a constant."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        given = [leaf for _, leaf in leaves((args, kwargs))]
        tensors = [
            leaf for leaf in given if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and is_strided(leaf)
        ]
        if not tensors or any(isinstance(leaf, float) and math.isinf(leaf) for leaf in given):
            return False
        if not all(is_strided(tensor) and is_finite(tensor) for tensor in tensors):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name in _CASTS and tensors[0].dtype != value.dtype:
            return True
        if node.op not in ("call_function", "call_method") or effect_of(node) is not None:
            return False
        # An element that is finite in float64: the dtype ends there, as at `x * x` for 1e30. Infinite there, too: it is
        # an overflow only if it is infinite for numbers nearby as well, as `exp(1e5)` is, and no pole, as `1 / 0` is.
        in_float64 = self._infinite(node, value, _to_float64)
        if in_float64 is None or not in_float64.any():
            return in_float64 is not None
        moved = self._infinite(node, value, _moved)
        return moved is not None and bool((moved | ~in_float64)[value.isinf()].all())

    def _infinite(
        self, node: Node, value: torch.Tensor, prepared: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        """Return where the node makes infinities of other values than ``value``; None if it does not take them."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        try:
            made = getattr(self, node.op)(node.target, map_tensors(prepared, args), map_tensors(prepared, kwargs))
        except Exception:  # whatever an operation raises that does not take float64
            return None
        infinite = torch.zeros_like(value, dtype=torch.bool)
        for _, leaf in leaves(made):
            if _has_infinities(leaf) and leaf.shape == value.shape:
                infinite |= leaf.isinf()
        return infinite


def _has_infinities(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and is_strided(leaf) and bool(leaf.isinf().any())


def _to_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Other numbers nearby, at which there is no pole."""
    return tensor.double() + 1e-3 * (1 + tensor.double().abs()) if tensor.is_floating_point() else tensor
