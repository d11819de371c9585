"""Holding outputs to the contract of a pass: ``exact``, ``close`` or ``approximate`` (:mod:`fx.passes.contract`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx.passes import Approximate, Close, Contract, Exact, close
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.equality import Difference, Leaf, Mismatch, decibels, pair_leaves, worst_difference
from pytest_fx.harness.snapshot import same_tensor
from pytest_fx.harness.tolerances import ERROR_FLOOR_ULPS, FAR_OUTSIDE

CONTINUED = "\n" + " " * 9
"""What stands between the lines of one part of a message."""


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

    tolerances: tuple[float, float]
    """Those of the contract, ``rtol`` and ``atol``, that hold here."""

    def promise(self, contract: Close, difference: Difference) -> str:
        """Say why an element may be off by the limit of ``difference``."""
        limit, times = difference.limit, contract.error_factor
        if limit == times * self.eager_error:
            own = f"{times:g} times the largest error that eager makes itself, {self.eager_error:.2g}"
            return f"close allows {limit:.2g}, {own}"
        if limit == _floor(self.leaf.actual.dtype, self.leaf.scale):
            return f"close allows {limit:.2g}, {ERROR_FLOOR_ULPS} ulp of the largest element"
        if limit == float(self.leaf.limits(*self.tolerances)[difference.index]):
            return f"{contract} allows {limit:.2g} there"
        return f"close allows {limit:.2g} there, as far as eager's own is off or moves by rounding"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers of a program beside those of eager, and what to call both in a message."""

    model: str
    """The model's name."""
    program: str
    """The name of the pass, or of what else made the program."""
    eager: Sequence[Any]
    """Eager's outputs in the working dtype, one for each input set."""
    actual: Sequence[Any]
    """The program's outputs in the working dtype."""
    eager64: Sequence[Any]
    """Eager's outputs in float64, at least for the first input sets; for all, unless the others are :func:`near`."""
    actual64: Sequence[Any] | None = None
    """The program's outputs for these in float64, if it can be had in float64."""
    whose: str = "output"
    """What the tensors that are compared are: an ``output``, or an ``input`` or a ``buffer`` that was written to."""
    deviations: Callable[[bool], Sequence[torch.Tensor]] | None = None
    """How far each element of eager's outputs moves, in float64 if it is given True, when eager's values are perturbed
    in their last bits; None if it is not known (:mod:`pytest_fx.laws.conditioning`)."""

    def require(self, contract: Contract) -> None:
        """Raise :class:`ContractViolation` unless the outputs keep ``contract``."""
        __tracebackhide__ = True
        if isinstance(contract, Exact):
            self.require_exact()
        elif isinstance(contract, Close):
            self.require_close(contract)
        elif isinstance(contract, Approximate):
            self.require_sqnr(contract.sqnr_db)

    def require_exact(self) -> None:
        """Raise :class:`ContractViolation` unless the outputs in the working dtype are bitwise equal."""
        __tracebackhide__ = True
        for position, leaf in enumerate(self._leaves(self.eager, self.actual)):
            errors = leaf.errors
            difference = worst_difference(leaf, leaf.bits_differ, errors, torch.zeros_like(errors))
            if difference is not None:
                value = _values(difference)
                if (beside := self._beside(self.eager64, position, difference)) is not None:
                    value += f"\neager in float64 {beside}"
                promise = f"exact promises equal bits\n{self._eager_error(difference)}"
                raise self._violation(difference, promise, value, "bits", self._remedy_of_exact())

    def require_close(self, contract: Close) -> None:
        """Raise :class:`ContractViolation` unless float64 outputs agree and rounding errors are like eager's own."""
        __tracebackhide__ = True
        if self.actual64 is not None:
            for position, leaf in enumerate(self._leaves_in_float64(contract)):
                errors, limits = leaf.errors, leaf.limits(contract.rtol, contract.atol)
                if bool((errors > limits).any()):
                    limits = torch.maximum(limits, self._deviation(position, leaf, float64=True))
                difference = worst_difference(leaf, errors > limits, errors, limits)
                if difference is not None:
                    own, value = self._in_working_dtype(position, difference)
                    promise = f"{contract} allows {difference.limit:.2g} there in float64\n{self._eager_error(own)}"
                    raise self._violation(own, promise, value, "values")
        self._require_error_like_eager(contract)

    def require_sqnr(self, sqnr_db: float) -> None:
        """Raise :class:`ContractViolation` unless each output has ``sqnr_db`` decibels of signal over noise."""
        __tracebackhide__ = True
        for path, ratio in self.sqnr_db().items():
            if not ratio >= sqnr_db:
                leaf = max(self.noisy_outputs()[path], key=_largest)
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
        """Return the floating-point tensors at each place, beside the best reference that there is.

        That is eager's own tensor where the program's equals it: an output that is kept keeps every ratio.
        """
        found: dict[str, list[Leaf]] = {}
        for best, own in zip(self._against_best(self.actual), self._leaves(self.eager, self.actual), strict=True):
            if own.is_float:
                is_kept = same_tensor(own.expected, own.actual)
                found.setdefault(own.path, []).append(own if is_kept else best)
        return found

    def float_leaves(self, expected: Sequence[Any], actual: Sequence[Any]) -> list[Leaf]:
        """Return the floating-point tensors of outputs side by side."""
        return [leaf for leaf in self._leaves(expected, actual) if leaf.actual.is_floating_point()]

    def largest_error(self) -> float:
        """Return the largest error of the program in the working dtype against eager in float64, where that ran."""
        return _largest_of(self._against_float64(self.actual))

    def bound_of_largest_error(self, contract: Close) -> float:
        """Return what the element with the largest error may be off in the working dtype."""
        bounds = [
            bound for bound in self.rounding_bounds(contract) if bound.leaf.errors.numel() and bound.leaf.is_float
        ]
        worst = max(bounds, key=lambda bound: bound.leaf.largest_error, default=None)
        return 0.0 if worst is None else float(worst.limits.flatten()[worst.leaf.errors.argmax()])

    def largest_eager_error(self) -> float:
        """Return the largest error of eager itself in the working dtype against eager in float64."""
        return _largest_of(self._against_float64(self.eager))

    def largest_error64(self) -> float | None:
        """Return the largest error in float64, or None if there are no such outputs."""
        if self.actual64 is None:
            return None
        return _largest_of(self._leaves(self.eager64, self.actual64))

    def _leaves_in_float64(self, contract: Close) -> list[Leaf]:
        """Return the leaves of outputs in float64, where a program may return another dtype than in its own."""
        __tracebackhide__ = True
        assert self.actual64 is not None
        try:
            return self._leaves(self.eager64, self.actual64, how="computed in float64, ")
        except ContractViolation:
            self._require_error_like_eager(contract)
            raise

    def _require_error_like_eager(self, contract: Close) -> None:
        __tracebackhide__ = True
        for position, bound in enumerate(self.rounding_bounds(contract)):
            leaf, errors, limits = bound.leaf, bound.leaf.errors, bound.limits
            if bool((errors > limits).any()):
                limits = torch.maximum(limits, bound.eager.errors + self._deviation(position, leaf, float64=False))
            difference = worst_difference(leaf, errors > limits, errors, limits)
            if difference is not None:
                own = bound.eager.actual[difference.index].item()
                value = f"eager {own!r}, transformed {difference.actual!r}"
                if own != difference.expected:
                    value += f"\neager in float64 {difference.expected!r}"
                raise self._violation(difference, bound.promise(contract, difference), value, "rounding")

    def rounding_bounds(self, contract: Close) -> list[RoundingBound]:
        """Return each tensor in the working dtype with the error that each of its elements may have.

        That is a few times the largest that eager makes itself, or its own in that very element, or what tolerances
        allow that are wider than the usual.
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
            limit = _rounding_limit(leaf.actual.dtype, eager_error[leaf.path], scale[leaf.path], contract)
            # In float64 the contract itself is meant.
            is_float64 = leaf.actual.dtype in (torch.float64, torch.complex128)
            tolerances = (contract.rtol, contract.atol) if is_float64 else contract.in_working_dtype
            limits = torch.maximum(eager.errors.clamp_(min=limit), leaf.limits(*tolerances))
            bounds.append(RoundingBound(leaf, eager, limits, eager_error[leaf.path], tolerances))
        return bounds

    def _deviation(self, position: int, leaf: Leaf, float64: bool) -> torch.Tensor:
        """Return how far each element of a tensor moves when eager's values are perturbed; 0 if that is not known."""
        found = () if self.deviations is None else self.deviations(float64)
        return found[position] if position < len(found) else torch.zeros_like(leaf.errors)

    def _eager_error(self, difference: Difference) -> str:
        """Return a clause on how large an error means anything in the dtype of what differs."""
        return f"eager's rounding error in {difference.dtype_name} is at most {self.largest_eager_error():.2g}"

    def _remedy_of_exact(self) -> str | None:
        """Return what to do about other bits: nothing is known where more than rounding differs."""
        try:
            self.require_close(close)
        except ContractViolation:
            return None
        return "what reorders arithmetic promises `close`"

    def _in_working_dtype(self, position: int, difference: Difference) -> tuple[Difference, str]:
        """Return what differs in float64 as a difference in the user's dtype, and the element in both dtypes."""
        value, found = _values(difference), self._leaves(self.eager, self.eager)
        actual = self._beside(self.actual, position, difference)
        if position >= len(found) or actual is None:
            return difference, f"in float64 {value}"
        eager = self._beside(self.eager, position, difference)
        own = f"eager {eager}, transformed {actual}"
        dtype = found[position].actual.dtype
        return replace(difference, dtype=dtype, ulps=None), own if own == value else f"{own}\nin float64 {value}"

    def _beside(self, outputs: Sequence[Any], position: int, difference: Difference) -> str | None:
        """Return the element that differs as it is in other outputs of eager's, if there are as many."""
        found = self._leaves(outputs, outputs)
        if position >= len(found) or found[position].actual.ndim != len(difference.index):
            return None
        return repr(found[position].actual[difference.index].item())

    def _violation(
        self, difference: Difference, promise: str, value: str, kind: str, remedy: str | None = None
    ) -> ContractViolation:
        """Return the error to raise; ``value`` has the worst element, and eager's in another dtype."""
        return ContractViolation(
            f"{self.program} changes {self._what}",
            where=f"{self._place(difference.path)}{difference.element}, {difference.extent}",
            value=value.replace("\n", CONTINUED),
            why=f"they are {difference.distance}\n{promise}".replace("\n", CONTINUED),
            remedy=remedy,
            kind=f"{kind} of {self.whose}",
            share=difference.count / max(1, difference.size),
            sqnr_db=difference.sqnr_db,
        )

    @property
    def _what(self) -> str:
        return f"what {self.model} {'computes' if self.whose == 'output' else f'writes to its {self.whose}s'}"

    def _place(self, path: str) -> str:
        """The tensor at ``path`` in words; what is written to is kept in a dict by its place or name."""
        if self.whose == "output":
            return f"output{path}"
        return f"input{path[2:-2]}" if self.whose == "input" else f"buffer {path[2:-2]}"

    def _against_float64(self, outputs: Sequence[Any]) -> list[Leaf]:
        """Return the leaves of outputs in the working dtype beside the float64 reference, where there is one."""
        __tracebackhide__ = True
        self._leaves(self.eager, outputs)  # dtypes must be eager's; float64's are others
        return self._leaves(self.eager64, outputs[: len(self.eager64)], same_dtype=False)

    def _against_best(self, outputs: Sequence[Any]) -> list[Leaf]:
        """Return the leaves of all outputs, beside eager's own where there is no float64 reference."""
        __tracebackhide__ = True
        rest = slice(len(self.eager64), None)
        return self._against_float64(outputs) + self._leaves(self.eager[rest], outputs[rest])

    def _leaves(
        self, expected: Sequence[Any], actual: Sequence[Any], same_dtype: bool = True, how: str = ""
    ) -> list[Leaf]:
        """Return the leaves of outputs side by side, or raise :class:`ContractViolation` if they do not match.

        ``how`` begins the sentence on what does not.
        """
        __tracebackhide__ = True
        pairs: list[Leaf] = []
        for wanted, output in zip(expected, actual, strict=True):
            found = pair_leaves(wanted, output, same_dtype, self._place)
            if isinstance(found, Mismatch):
                changed = f"what {self.model} returns" if self.whose == "output" else self._what
                raise ContractViolation(
                    f"{self.program} changes {changed}", why=f"{how}{found.text}", kind=f"result's {found.kind}"
                )
            pairs.extend(found)
        return pairs


def near(
    eager: Sequence[Any],
    actual: Sequence[Any],
    known: Sequence[Any],
    known64: Sequence[Any],
    contract: Contract = close,
) -> bool:
    """Return whether outputs of a program are as near to eager's as rounding errors leave them, without a reference.

    Both are in the working dtype, as ``known`` is: outputs of eager's for other inputs, which tell beside those in
    float64, ``known64``, how large its errors are.
    """
    errors: dict[str, float] = {}
    for output, output64 in zip(known, known64, strict=True):
        found = pair_leaves(output64, output, same_dtype=False)
        for leaf in [] if isinstance(found, Mismatch) else found:
            errors[leaf.path] = max(errors.get(leaf.path, 0.0), rounding_error(leaf))
    for expected, output in zip(eager, actual, strict=True):
        found = pair_leaves(expected, output)
        if isinstance(found, Mismatch):
            return False
        for leaf in found:
            own = errors.get(leaf.path, 0.0)
            if not _largest(leaf) <= own + _rounding_limit(leaf.actual.dtype, own, leaf.scale, contract):
                return False
    return True


def rounding_error(leaf: Leaf) -> float:
    """Return the largest rounding error of a tensor.

    Errors far outside of the others are those of elements that lie at a step, such as an index at a tie. Integers have
    no others.
    """
    if not leaf.is_float:
        return 0.0
    errors = leaf.errors[(leaf.expected != 0) & leaf.actual.isfinite()]  # a ReLU's zeros are exact
    if not errors.numel():
        return 0.0
    largest = float(errors.max())
    usual = FAR_OUTSIDE * float(errors.kthvalue(-(-3 * errors.numel() // 4)).values)
    return largest if largest <= usual else float(errors[errors <= usual].max())


def rounding_limit(leaf: Leaf, eager_error: float, contract: Contract = close) -> torch.Tensor:
    """Return what each element may be off in the working dtype where eager's own largest error is ``eager_error``."""
    limits = torch.full_like(leaf.errors, _rounding_limit(leaf.actual.dtype, eager_error, leaf.scale, contract))
    return torch.maximum(limits, leaf.limits(*contract.in_working_dtype)) if isinstance(contract, Close) else limits


def _rounding_limit(dtype: torch.dtype, eager_error: float, scale: float, contract: Contract) -> float:
    factor = contract.error_factor if isinstance(contract, Close) else close.error_factor
    return max(factor * eager_error, _floor(dtype, scale))


def _floor(dtype: torch.dtype, scale: float) -> float:
    """Return what may be off even where eager, by luck, has no error at all."""
    ulp = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
    return ERROR_FLOOR_ULPS * ulp * scale


def _values(difference: Difference) -> str:
    return f"eager {difference.expected!r}, transformed {difference.actual!r}"


def _largest_of(leaves: Sequence[Leaf]) -> float:
    """Return the largest error of floating-point tensors: an index or a class is another one, or is not."""
    return max((_largest(leaf) for leaf in leaves if leaf.is_float), default=0.0)


def _largest(leaf: Leaf) -> float:
    errors = leaf.errors
    return float(errors.max()) if errors.numel() else 0.0
