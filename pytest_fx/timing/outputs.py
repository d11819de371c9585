"""Checks on the outputs of timed calls: computed when the call returns, and from its inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx.passes import Approximate, Contract
from pytest_fx.errors import ComparisonError, TimedOutputError
from pytest_fx.harness.equality import Leaf, Mismatch, pair_leaves
from pytest_fx.harness.process import ProcessState
from pytest_fx.harness.structure import leaves
from pytest_fx.timing.contents import hash_of

COARSE_ERROR = 0.25
"""An error of outputs, relative to eager's, that only an explicit contract allows: that of other contents is about
1."""
GROWTH = 8.0
"""The factor by which an error may exceed the smallest one on other contents: a quantized program's are alike."""
STALE = 0.5
"""An error relative to the nearest output of eager. An output with a larger one may belong to other contents."""
MOST_SAMPLED = 4096
"""Elements of eager's outputs that are kept to measure their changes."""
FEW_ELEMENTS = 16
"""Elements of all outputs up to which a quantized program may return equal outputs for similar inputs."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Outputs of both programs for the same contents."""

    signal: float
    """Sum of squares of eager's floating-point elements."""
    noise: float
    """Sum of squares of the errors; infinite if outputs cannot be compared."""
    floor: float
    """Relative error that rounding explains: the square root of the machine epsilon."""
    elements: int
    """The number of floating-point elements."""
    eager: bytes
    """A hash of eager's outputs."""
    program: bytes
    """A hash of the program's outputs."""
    sample: torch.Tensor
    """Some of eager's elements, spread over its outputs, in float64."""

    @property
    def error(self) -> float:
        """The error, relative to eager's outputs."""
        return math.sqrt(self.noise / self.signal) if self.signal else (math.inf if self.noise else 0.0)

    def change(self, others: list[Observation]) -> float:
        """Return the relative distance of eager's outputs to the nearest of ``others``; 0 if it is unknown."""
        scale = float(self.sample.norm())
        alike = [other.sample for other in others if other is not self and other.sample.shape == self.sample.shape]
        changes = [float((self.sample - sample).norm()) for sample in alike]
        return min(changes, default=0.0) / scale if scale else 0.0


class OutputCheck:
    """Checks outputs of a timed program against eager's, outside of the clock."""

    def __init__(self, program: str, model: str, contract: Contract | None = None) -> None:
        """Take the names for messages; ``contract`` is the program's promise, None if it promises nothing."""
        self._program, self._model, self._contract = program, model, contract
        self._classes: set[type] = set()
        self._warm: list[Observation] = []
        self._timed: list[Observation] = []

    def require_computed(self, output: Any) -> None:
        """Raise :class:`~pytest_fx.errors.TimedOutputError` for an output that may be computed later.

        Plain tensors, numbers and text in tuples, lists and dicts count as computed, and all that eager returns.
        """
        computed = {*_COMPUTED, *self._classes}
        lazy = [(path, leaf) for path, leaf in leaves(output) if _kind(leaf) not in computed]
        if not lazy and not isinstance(output, (tuple, list, dict, *computed)):
            lazy = [("", output)]
        for path, leaf in lazy:
            raise self._error(
                "returns something else than tensors of eager's classes",
                value=f"output{path} is of the class {type(leaf).__module__}.{type(leaf).__qualname__}",
                why="it may be computed when somebody reads it, which no clock sees",
                remedy="return the tensors themselves",
            )

    def require_process_kept(self, before: ProcessState) -> None:
        """Raise :class:`~pytest_fx.errors.TimedOutputError` if the process has changed; restore it first."""
        if changes := before.changes():
            before.put_back()
            raise self._error(
                "changed the process, when it is called",
                value="\n         ".join(changes),
                why="what a call leaves behind changes what others take and compute, eager among them",
                remedy="leave functions and switches as they are, or put them back before the call ends",
            )

    def learn(self, eager: Any) -> None:
        """Record the classes of eager's outputs."""
        self._classes |= {type(eager), *(_kind(leaf) for _, leaf in leaves(eager))}

    def observe(self, eager: Any, output: Any, *, timed: bool = True) -> None:
        """Record the outputs of both programs for the same contents; ``timed`` is false for a first call."""
        try:
            pairs = pair_leaves(eager, output, same_dtype=False)
        except ComparisonError:  # such as nested tensors: nothing is known about them
            return
        (self._timed if timed else self._warm).append(_observation(pairs))

    def require_followed(self) -> None:
        """Raise :class:`~pytest_fx.errors.TimedOutputError` unless outputs follow the contents of inputs.

        A program may differ from eager, but not by more on later contents, and it may not return the same for the first
        and the last. A program with a contract must also be roughly near.
        """
        observations = self._warm + self._timed
        if not self._timed or not any(observation.elements for observation in observations):
            return
        first = self._timed[0] if len(self._timed) > 1 else observations[0]
        stands_still = self._stands_still(first, observations[-1])
        if stands_still or self._falls_behind(observations) or self._is_far(observations):
            raise self._error(
                "returns something else when the contents of its inputs change: a cache?",
                value="error of outputs, in parts of eager's: "
                + ", ".join(f"{case.error:.2g}" for case in observations),
                why="each call is given other contents at the same addresses, and eager's outputs change with them; "
                "a program that does not look at its inputs has no time",
                remedy="compute from what the call is given; keep only what depends on parameters and buffers",
            )

    def _stands_still(self, first: Observation, last: Observation) -> bool:
        """Return whether the program's outputs are equal although eager's are not, and no coarse scale explains it."""
        same = first.program == last.program and first.eager != last.eager
        return same and last.error > last.floor and (last.elements > FEW_ELEMENTS or _pooled([last]) > COARSE_ERROR)

    def _falls_behind(self, observations: list[Observation]) -> bool:
        """Return whether errors of half of the calls are far larger than the smallest, and as large as eager's changes.

        Errors of a cache are. Those of a quantized program grow, too, if contents leave the calibrated range, but less.
        Of few elements the smallest error is a matter of luck, unless it is 0.
        """
        least = min(observations, key=lambda observation: observation.error)
        if least.elements <= FEW_ELEMENTS and least.error > 4 * least.floor**2:
            return False
        behind = [each for each in self._timed if each.error > GROWTH * least.error + max(each.floor, self._promised)]
        stale = [each for each in behind if each.error >= STALE * each.change(observations)]
        return 2 * len(stale) >= len(self._timed)

    def _is_far(self, observations: list[Observation]) -> bool:
        return self._contract is not None and _pooled(observations) > max(COARSE_ERROR, 2 * self._promised)

    @property
    def _promised(self) -> float:
        """The relative error that the contract itself allows."""
        return 10 ** (-self._contract.sqnr_db / 20) if isinstance(self._contract, Approximate) else 0.0

    def _error(self, what: str, **parts: str) -> TimedOutputError:
        return TimedOutputError(f"{self._program} {what}", where=self._model, **parts)


def _observation(pairs: list[Leaf] | Mismatch) -> Observation:
    if isinstance(pairs, Mismatch):
        return Observation(1.0, math.inf, 0.0, 1, b"", pairs.text.encode(), torch.empty(0))
    numbers = [leaf for leaf in pairs if leaf.expected.is_floating_point() or leaf.expected.is_complex()]
    signal = noise = 0.0
    for leaf in numbers:
        for piece in leaf.pieces():
            signal_in_float64 = piece.expected.to(torch.complex128 if piece.expected.is_complex() else torch.float64)
            signal += float(signal_in_float64.abs().nan_to_num_(0.0, 0.0, 0.0).pow_(2).sum())
            noise += float(piece.errors.pow_(2).sum())
    return Observation(
        signal,
        noise,
        max((math.sqrt(torch.finfo(leaf.expected.dtype).eps) for leaf in numbers), default=0.0),
        sum(leaf.expected.numel() for leaf in numbers),
        hash_of([leaf.expected for leaf in numbers]),
        hash_of([leaf.actual for leaf in numbers]),
        _sample([leaf.expected for leaf in numbers]),
    )


def _sample(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return finite elements at even distances; complex tensors give real and imaginary parts."""
    parts: list[torch.Tensor] = []
    for tensor in tensors:
        flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).detach().reshape(-1)
        step = max(1, len(flat) * len(tensors) // MOST_SAMPLED)
        parts.append(flat[::step].to(torch.float64).nan_to_num(0.0, 0.0, 0.0))
    return torch.cat(parts) if parts else torch.empty(0)


def _pooled(observations: list[Observation]) -> float:
    """Return the pooled error of all outputs, relative to eager's."""
    signal, noise = sum(each.signal for each in observations), sum(each.noise for each in observations)
    return math.sqrt(noise / signal) if signal else (math.inf if noise else 0.0)


_COMPUTED: set[type] = {torch.Tensor, bool, int, float, complex, str, type(None)}
"""Classes of values that cannot be computed later."""


def _kind(value: Any) -> type:
    """Return the class of a value; a parameter counts as a plain tensor."""
    return torch.Tensor if type(value) is nn.Parameter else type(value)
