"""Holding answers to the contract of a pass: ``exact``, ``close`` or ``approximate`` (:mod:`fx.passes.contract`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fx.passes import Approximate, Close, Contract, Exact
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.equality import Difference, Leaf, Mismatch, pair_leaves, worst_difference
from pytest_fx.harness.precision import decibels

ERROR_FACTOR = 8.0
"""How many times eager's own error a transformed program may have in the working dtype.

Two correct orders of the same arithmetic round differently. Over 66 random ResNets, folding batch norms made the
largest error of 1,000 outputs 0.95 to 1.3 times eager's, of 80 outputs 0.3 to 3.1 times, of 10 outputs 0.5 to 5.8
times. The factor leaves three bits. What it is there to catch, precision lost in half-precision or TF32 steps, costs
2**10 times and more; faults of any size in the formulas are caught in float64.
"""
ERROR_FLOOR_ULPS = 4
"""Ulp of an output's largest element that are allowed even where eager, by luck, has no error at all."""
FAR_OUTSIDE = 64.0
"""How many times the upper quartile of eager's errors one has to be, not to count as a rounding error of the output.

An index that falls on the other side of a tie, and all that is computed from it, says nothing about other elements.
"""

CONTINUED = "\n" + " " * 9
"""What stands between the lines of one part of a message."""
INACCURATE = "a pass that trades accuracy for speed promises approximate(sqnr_db=…)"


@dataclass(frozen=True, slots=True)
class RoundingBound:
    """A tensor in the working dtype, and what error each of its elements may have."""

    leaf: Leaf
    """The program's beside eager's in float64."""
    eager: Leaf
    """Eager's own beside that."""
    limits: torch.Tensor
    """The error that each element may have."""
    eager_error: float
    """The largest rounding error that eager makes itself in tensors at this place."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers of a program beside those of eager, and what to call both in a message."""

    model: str
    """The model's name."""
    program: str
    """The name of the pass, or of what else made the program."""
    eager: Sequence[Any]
    """Eager's answers in the working dtype, one for each draw of inputs."""
    actual: Sequence[Any]
    """The program's answers in the working dtype."""
    eager64: Sequence[Any]
    """Eager's answers in float64, at least to the first draws; to all, unless the others are :func:`near`."""
    actual64: Sequence[Any] | None = None
    """The program's answers to these in float64, if it can be had in float64."""
    whose: str = "output"
    """What the tensors that are compared are: an ``output``, or an ``input`` or a ``buffer`` that was written to."""
    deviations: Callable[[bool], Sequence[torch.Tensor]] | None = None
    """How far each element of eager's outputs moves, in float64 if it is given True, when eager's values are perturbed
    in their last bits; None if it is not known (:mod:`pytest_fx.laws.conditioning`)."""

    def require(self, contract: Contract) -> None:
        """Raise :class:`ContractViolation` unless the answers keep ``contract``."""
        __tracebackhide__ = True
        if isinstance(contract, Exact):
            self.require_exact()
        elif isinstance(contract, Close):
            self.require_close(contract)
        elif isinstance(contract, Approximate):
            self.require_sqnr(contract.sqnr_db)

    def require_exact(self) -> None:
        """Raise :class:`ContractViolation` unless the answers in the working dtype are bitwise equal."""
        __tracebackhide__ = True
        for position, leaf in enumerate(self._leaves(self.eager, self.actual)):
            errors = leaf.errors
            difference = worst_difference(leaf, leaf.bits_differ, errors, torch.zeros_like(errors))
            if difference is not None:
                value = _values(difference)
                if (beside := self._beside(self.eager64, position, difference)) is not None:
                    value += f"\neager in float64 {beside}"
                promise = f"exact promises equal bits\n{self._eager_error()}"
                raise self._violation(
                    difference, promise, "a pass that reorders arithmetic promises `close`", value, "bits"
                )

    def require_close(self, contract: Close) -> None:
        """Raise :class:`ContractViolation` unless float64 answers agree and rounding errors are like eager's own."""
        __tracebackhide__ = True
        if self.actual64 is not None:
            for position, leaf in enumerate(self._leaves(self.eager64, self.actual64)):
                errors, limits = leaf.errors, leaf.limits(contract.rtol, contract.atol)
                if bool((errors > limits).any()):
                    limits = torch.maximum(limits, self._deviation(position, leaf, wide=True))
                difference = worst_difference(leaf, errors > limits, errors, limits)
                if difference is not None:
                    own = self._beside(self.eager, position, difference)
                    value = f"{_values(difference)}\neager in its own dtype {own}"
                    promise = f"{contract} allows {difference.limit:.2g} there in float64\n{self._eager_error()}"
                    raise self._violation(difference, promise, INACCURATE, value, "values")
        self._require_error_like_eager(contract)

    def require_sqnr(self, sqnr_db: float) -> None:
        """Raise :class:`ContractViolation` unless each output has ``sqnr_db`` decibels of signal over noise."""
        __tracebackhide__ = True
        for path, ratio in self.sqnr_db().items():
            if not ratio >= sqnr_db:
                leaf = max((leaf for leaf in self._against_best(self.actual) if leaf.path == path), key=_largest)
                errors = leaf.errors
                worst = worst_difference(leaf, errors > 0, errors, torch.zeros_like(errors))
                value = f"signal-to-quantization-noise ratio {ratio:.1f} dB"
                if worst is not None:
                    value += f"; at {worst.element or 'its only element'}, the worst, {_values(worst)}"
                raise ContractViolation(
                    f"{self.program} changes {self._what} by more than it promises",
                    where=self._place(path),
                    value=value,
                    why=f"approximate promises at least {sqnr_db:g} dB",
                    kind=f"sqnr of {self.whose}",
                )

    def sqnr_db(self) -> dict[str, float]:
        """Return the signal-to-quantization-noise ratio of each output, in decibels."""
        powers = {path: [leaf.power for leaf in leaves] for path, leaves in self.noisy_outputs().items()}
        return {path: decibels(*map(sum, zip(*power, strict=True))) for path, power in powers.items()}

    def noisy_outputs(self) -> dict[str, list[Leaf]]:
        """Return the floating-point tensors at each place, beside the best reference that there is."""
        found: dict[str, list[Leaf]] = {}
        for leaf in self._against_best(self.actual):
            if leaf.actual.is_floating_point() or leaf.actual.is_complex():
                found.setdefault(leaf.path, []).append(leaf)
        return found

    def float_leaves(self, expected: Sequence[Any], actual: Sequence[Any]) -> list[Leaf]:
        """Return the floating-point tensors of answers side by side."""
        return [leaf for leaf in self._leaves(expected, actual) if leaf.actual.is_floating_point()]

    def largest_error(self) -> float:
        """Return the largest error of the program in the working dtype against eager in float64, where that ran."""
        return max((_largest(leaf) for leaf in self._against_float64(self.actual)), default=0.0)

    def bound_of_largest_error(self, contract: Close) -> float:
        """Return what the element with the largest error may be off in the working dtype."""
        bounds = [bound for bound in self.rounding_bounds(contract) if bound.leaf.errors.numel()]
        worst = max(bounds, key=lambda bound: bound.leaf.largest_error, default=None)
        return 0.0 if worst is None else float(worst.limits.flatten()[worst.leaf.errors.argmax()])

    def largest_eager_error(self) -> float:
        """Return the largest error of eager itself in the working dtype against eager in float64."""
        return max((_largest(leaf) for leaf in self._against_float64(self.eager)), default=0.0)

    def largest_error64(self) -> float | None:
        """Return the largest error in float64, or None if there are no such answers."""
        if self.actual64 is None:
            return None
        return max((_largest(leaf) for leaf in self._leaves(self.eager64, self.actual64)), default=0.0)

    def _require_error_like_eager(self, contract: Close) -> None:
        __tracebackhide__ = True
        for position, bound in enumerate(self.rounding_bounds(contract)):
            leaf, errors, limits = bound.leaf, bound.leaf.errors, bound.limits
            if bool((errors > limits).any()):
                limits = torch.maximum(limits, bound.eager.errors + self._deviation(position, leaf, wide=False))
            difference = worst_difference(leaf, errors > limits, errors, limits)
            if difference is not None:
                promise = (
                    f"close allows {difference.limit:.2g}, {ERROR_FACTOR:g} times the largest error that eager makes "
                    f"itself, {bound.eager_error:.2g}"
                )
                own = bound.eager.actual[difference.index].item()
                value = f"eager {own!r}, transformed {difference.actual!r}\neager in float64 {difference.expected!r}"
                raise self._violation(difference, promise, INACCURATE, value, "rounding")

    def rounding_bounds(self, contract: Close) -> list[RoundingBound]:
        """Return each tensor in the working dtype with the error that each of its elements may have.

        That is a few times the largest that eager makes itself, or its own in that very element.
        """
        __tracebackhide__ = True
        eager_leaves = self._against_float64(self.eager)
        eager_error: dict[str, float] = {}
        scale: dict[str, float] = {}
        for leaf in eager_leaves:
            eager_error[leaf.path] = max(eager_error.get(leaf.path, 0.0), rounding_error(leaf))
            scale[leaf.path] = max(scale.get(leaf.path, 0.0), leaf.scale)
        bounds: list[RoundingBound] = []
        for eager, leaf in zip(eager_leaves, self._against_float64(self.actual), strict=True):
            limit = _rounding_limit(leaf.actual.dtype, eager_error[leaf.path], scale[leaf.path])
            limits = eager.errors.clamp_(min=limit)
            if leaf.actual.dtype in (torch.float64, torch.complex128):  # where the contract itself is meant
                limits = torch.maximum(limits, leaf.limits(contract.rtol, contract.atol))
            bounds.append(RoundingBound(leaf, eager, limits, eager_error[leaf.path]))
        return bounds

    def _deviation(self, position: int, leaf: Leaf, wide: bool) -> torch.Tensor:
        """How far each element of a tensor moves when eager's values are perturbed; nowhere if that is not known."""
        found = () if self.deviations is None else self.deviations(wide)
        return found[position] if position < len(found) else torch.zeros_like(leaf.errors)

    def _eager_error(self) -> str:
        """Return a clause on how large an error means anything in the working dtype."""
        return f"eager's own error in the working dtype is at most {self.largest_eager_error():.2g}"

    def _beside(self, answers: Sequence[Any], position: int, difference: Difference) -> str | None:
        """Return the element that differs as it is in other answers of eager's, if there are as many."""
        found = self._leaves(answers, answers)
        return repr(found[position].actual[difference.index].item()) if position < len(found) else None

    def _violation(self, difference: Difference, promise: str, remedy: str, value: str, kind: str) -> ContractViolation:
        """Return the error to raise; ``value`` has the worst element, and eager's in another dtype."""
        return ContractViolation(
            f"{self.program} changes {self._what}",
            where=f"{self._place(difference.path)}{difference.element}, {difference.extent}",
            value=value.replace("\n", CONTINUED),
            why=f"they are {difference.distance}\n{promise}".replace("\n", CONTINUED),
            remedy=remedy,
            kind=f"{kind} of {self.whose}",
            share=difference.count / max(1, difference.size),
        )

    @property
    def _what(self) -> str:
        return f"what {self.model} {'computes' if self.whose == 'output' else f'writes to its {self.whose}s'}"

    def _place(self, path: str) -> str:
        """The tensor at ``path`` in words; what is written to is kept in a dict by its place or name."""
        if self.whose == "output":
            return f"output{path}"
        return f"input{path[2:-2]}" if self.whose == "input" else f"buffer {path[2:-2]}"

    def _against_float64(self, answers: Sequence[Any]) -> list[Leaf]:
        """Return the leaves of answers in the working dtype beside the float64 reference, where there is one."""
        __tracebackhide__ = True
        self._leaves(self.eager, answers)  # dtypes must be eager's; float64's are others
        return self._leaves(self.eager64, answers[: len(self.eager64)], same_dtype=False)

    def _against_best(self, answers: Sequence[Any]) -> list[Leaf]:
        """Return the leaves of all answers, beside eager's own where there is no float64 reference."""
        __tracebackhide__ = True
        rest = slice(len(self.eager64), None)
        return self._against_float64(answers) + self._leaves(self.eager[rest], answers[rest])

    def _leaves(self, expected: Sequence[Any], actual: Sequence[Any], same_dtype: bool = True) -> list[Leaf]:
        """Return the leaves of answers side by side, or raise :class:`ContractViolation` if they do not match."""
        __tracebackhide__ = True
        pairs: list[Leaf] = []
        for wanted, answer in zip(expected, actual, strict=True):
            found = pair_leaves(wanted, answer, same_dtype, self._place)
            if isinstance(found, Mismatch):
                changed = f"what {self.model} returns" if self.whose == "output" else self._what
                raise ContractViolation(
                    f"{self.program} changes {changed}", why=found.text, kind=f"result's {found.kind}"
                )
            pairs.extend(found)
        return pairs


def near(eager: Sequence[Any], actual: Sequence[Any], known: Sequence[Any], known64: Sequence[Any]) -> bool:
    """Whether answers of a program are as near to eager's as rounding errors leave them, without a reference.

    Both are in the working dtype, as ``known`` is: answers of eager's to other inputs, which tell beside those in
    float64, ``known64``, how large its errors are.
    """
    errors: dict[str, float] = {}
    for answer, answer64 in zip(known, known64, strict=True):
        found = pair_leaves(answer64, answer, same_dtype=False)
        for leaf in [] if isinstance(found, Mismatch) else found:
            errors[leaf.path] = max(errors.get(leaf.path, 0.0), rounding_error(leaf))
    for expected, answer in zip(eager, actual, strict=True):
        found = pair_leaves(expected, answer)
        if isinstance(found, Mismatch):
            return False
        for leaf in found:
            own = errors.get(leaf.path, 0.0)
            if not _largest(leaf) <= own + _rounding_limit(leaf.actual.dtype, own, leaf.scale):
                return False
    return True


def rounding_error(leaf: Leaf) -> float:
    """Return the largest rounding error of a tensor.

    Errors far outside of the others are those of elements that lie at a step, such as an index at a tie. Integers have
    no others.
    """
    if not (leaf.actual.is_floating_point() or leaf.actual.is_complex()):
        return 0.0
    errors = leaf.errors[(leaf.expected != 0) & leaf.actual.isfinite()]  # a ReLU's zeros are exact
    if not errors.numel():
        return 0.0
    largest = float(errors.max())
    usual = FAR_OUTSIDE * float(errors.kthvalue(-(-3 * errors.numel() // 4)).values)
    return largest if largest <= usual else float(errors[errors <= usual].max())


def rounding_limit(leaf: Leaf, eager_error: float) -> torch.Tensor:
    """Return the error that rounding may make in each element where eager's own largest error is ``eager_error``."""
    return torch.full_like(leaf.errors, _rounding_limit(leaf.actual.dtype, eager_error, leaf.scale))


def _rounding_limit(dtype: torch.dtype, eager_error: float, scale: float) -> float:
    ulp = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
    return max(ERROR_FACTOR * eager_error, ERROR_FLOOR_ULPS * ulp * scale)


def _values(difference: Difference) -> str:
    return f"eager {difference.expected!r}, transformed {difference.actual!r}"


def _largest(leaf: Leaf) -> float:
    errors = leaf.errors
    return float(errors.max()) if errors.numel() else 0.0
