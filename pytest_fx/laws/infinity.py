"""Find the output elements that depend on an infinity: the same arithmetic in another order may give NaN there."""

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
"""Inputs of this size count as infinite, since they soon overflow."""
_CASTS = frozenset({"to", "type", "type_as", *CASTS})


class WithoutInfinities(NamedTuple):
    """Runs of eager in which other values replace infinite ones."""

    runs: list[Run]
    """Runs with NaN, 0 and 1 for each infinite value, be it an input or an overflow; empty if no value is infinite."""
    overflows: bool
    """True if values are infinite although all inputs, parameters and buffers are finite."""


def without_infinities(pass_run: PassRun, inputs: Inputs) -> WithoutInfinities:
    """Run eager with NaN, with 0 and with 1 for each infinite value.

    An element that differs from eager's own output depends on an infinity. ``F.gelu(inf)`` is NaN, but ``inf * 0.5 * (1
    + erf(inf))`` and its sigmoid are not; the softmax of infinities alone is NaN, but attention returns 0 for them; and
    ``(300 * x).half()`` is infinite, but ``300 * x.half()`` may not be. If a program masks with infinities, but its
    inputs are ordinary numbers that do not overflow, its outputs depend only on these numbers.
    """
    return pass_run.once(("without infinities", inputs), lambda: _without_infinities(pass_run, inputs))


def _without_infinities(pass_run: PassRun, inputs: Inputs) -> WithoutInfinities:
    subject = pass_run.subject
    if subject.capture_error is not None:  # the operations that overflow are unknown
        return WithoutInfinities([], overflows=False)
    program = pass_run.untouched().after
    arguments = subject.arguments(inputs)
    has_extremes = any(map(_is_extreme, _floating_point(arguments, subject)))
    runs: list[Run] = []
    for value in (math.nan, 0.0, 1.0):  # inf / inf is NaN, and so are 0 / 0 and NaN / NaN, but not 1 / 1
        poisoned = Poisoned(program, value, everywhere=has_extremes)
        runs.append(subject.run_in_a_row(subject.runner(poisoned.module, by(poisoned)), inputs)[-1])
        if not poisoned.replaced:
            return WithoutInfinities([], overflows=False)
    return WithoutInfinities(runs, overflows=all(map(is_finite, _floating_point(arguments, subject))))


def has_infinities(pass_run: PassRun, inputs: Inputs) -> bool:
    """Return whether eager computes an infinite value from these inputs; False if the model cannot be captured."""
    subject = pass_run.subject
    if subject.capture_error is not None:
        return False
    poisoned = Poisoned(pass_run.untouched().after, 0.0, everywhere=True)
    subject.run_in_a_row(subject.runner(poisoned.module, by(poisoned)), inputs)
    return poisoned.replaced


def _floating_point(arguments: Arguments, subject: Subject) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors among the inputs, parameters and buffers."""
    every = chain(arguments.tensors, subject.tensors.values())
    return (tensor for tensor in every if tensor.is_floating_point() and is_plain(tensor))


def _is_extreme(tensor: torch.Tensor) -> bool:
    return not all(bool((piece.abs() < LARGE).all()) for (piece,) in in_pieces(dense(tensor)))


class Poisoned(Interpreter):
    """Interpreter that replaces each infinite element, or only those that overflow, by a value."""

    def __init__(self, program: Any, value: float, everywhere: bool) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._value = value
        self._everywhere = everywhere
        self.replaced = False
        """True if an element was replaced."""

    def run_node(self, n: Node) -> Any:
        """Run the node, and replace infinite elements of its value."""
        value = super().run_node(n)
        if n.op not in ("get_attr", "output"):
            for _, leaf in leaves(value):
                if _has_infinities(leaf) and (self._everywhere or self._overflows(n, leaf)):
                    leaf.data[leaf.isinf()] = self._value
                    self.replaced = True
        return value

    def _overflows(self, node: Node, value: torch.Tensor) -> bool:
        """Return whether ``value`` exceeds the range of its dtype, and is not infinite at a pole or by a constant."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        operands = [leaf for _, leaf in leaves((args, kwargs))]
        tensors = [
            each
            for each in operands
            if isinstance(each, torch.Tensor) and each.is_floating_point() and is_strided(each)
        ]
        if not tensors or any(isinstance(leaf, float) and math.isinf(leaf) for leaf in operands):
            return False
        if not all(is_strided(tensor) and is_finite(tensor) for tensor in tensors):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name in _CASTS and tensors[0].dtype != value.dtype:
            return True
        if node.op not in ("call_function", "call_method") or effect_of(node) is not None:
            return False
        # An element that is finite in float64 overflows in its dtype, as `x * x` for 1e30. One that is infinite in
        # float64, too, overflows only if it is infinite for nearby numbers as well: `exp(1e5)`, but not the pole `1/0`.
        in_float64 = self._infinite(node, value, _to_float64)
        if in_float64 is None or not in_float64.any():
            return in_float64 is not None
        moved = self._infinite(node, value, _moved)
        return moved is not None and bool((moved | ~in_float64)[value.isinf()].all())

    def _infinite(
        self, node: Node, value: torch.Tensor, prepared: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        """Return a mask of the infinities that the node computes from prepared operands; None if it refuses them."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        try:
            result = getattr(self, node.op)(node.target, map_tensors(prepared, args), map_tensors(prepared, kwargs))
        except Exception:  # an operation may refuse float64 by any exception
            return None
        infinite = torch.zeros_like(value, dtype=torch.bool)
        for _, leaf in leaves(result):
            if _has_infinities(leaf) and leaf.shape == value.shape:
                infinite |= leaf.isinf()
        return infinite


def _has_infinities(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and is_strided(leaf) and bool(leaf.isinf().any())


def _to_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return nearby numbers, at which there is no pole."""
    return tensor.double() + 1e-3 * (1 + tensor.double().abs()) if tensor.is_floating_point() else tensor
