"""Checks of outputs against the contract of a pass: exact, close or approximate (:mod:`fx.pipelines.contract`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx.passes import Approximate, Close, Contract, Exact, close
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.equality import Difference, Leaf, Mismatch, decibels, pair_leaves, worst_difference
from pytest_fx.harness.output_contracts import SELECTED, OutputContract
from pytest_fx.harness.snapshot import same_tensor
from pytest_fx.harness.structure import dtype_name
from pytest_fx.harness.tolerances import ERROR_FLOOR_ULPS, FAR_OUTSIDE

CONTINUED = "\n" + " " * 9
"""The separator of lines within one part of a message."""


@dataclass(frozen=True, slots=True)
class RoundingBound:
    """A tensor in the working dtype, with the error that each of its elements may have."""

    leaf: Leaf
    """The program's tensor beside eager's in float64."""
    eager: Leaf
    """Eager's tensor in the working dtype beside eager's in float64."""
    limits: torch.Tensor
    """The error that each element may have."""
    eager_error: float
    """The largest rounding error of eager itself, over all tensors at this place in the output."""

    tolerances: tuple[float, float]
    """The contract's ``rtol`` and ``atol`` for the dtype of this tensor."""

    def promise(self, contract: Close, difference: Difference) -> str:
        """Return a clause that explains the limit of ``difference``."""
        limit, times = difference.limit, contract.error_factor
        if limit == times * self.eager_error:
            return f"close allows {limit:.2g}, {times:g} times eager's own largest error, {self.eager_error:.2g}"
        if limit == _floor(self.leaf.actual.dtype, self.leaf.scale):
            return f"close allows {limit:.2g}, {ERROR_FLOOR_ULPS} ulp of the largest element"
        if limit == float(self.leaf.limits(*self.tolerances)[difference.index]):
            return f"{contract} allows {limit:.2g} there"
        return f"close allows {limit:.2g} there, for eager's own error and its sensitivity to rounding"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outputs of a program beside those of eager, and the names of both for messages."""

    model: str
    """The model's name."""
    program: str
    """The name of the pass, or of whatever made the program."""
    eager: Sequence[Any]
    """Eager's outputs in the working dtype, one for each input set."""
    actual: Sequence[Any]
    """The program's outputs in the working dtype."""
    eager64: Sequence[Any]
    """Eager's outputs in float64: for all input sets, or for the first ones if :func:`near` holds for the others."""
    actual64: Sequence[Any] | None = None
    """The program's outputs in float64 for the same input sets; None if it has no float64 version."""
    whose: str = "output"
    """The kind of the compared tensors: ``output``, ``selected output`` for some of them in a dict by their paths, or
    ``input`` or ``buffer`` for those that were written to."""
    deviation: Callable[[int, bool], torch.Tensor | None] | None = None
    """A function that returns how far each element of a tensor moves when eager's values are perturbed in their last
    bits (:mod:`pytest_fx.laws.conditioning`). It takes the position of the tensor among those of all outputs, and
    whether it is in float64. None, of it or from it, if that is unknown."""

    def require(self, contract: Contract) -> None:
        """Raise :class:`ContractViolation` unless the outputs keep ``contract``."""
        __tracebackhide__ = True
        if isinstance(contract, Exact):
            self.require_exact()
        elif isinstance(contract, Close):
            self.require_close(contract)
        elif isinstance(contract, Approximate):
            self.require_sqnr(contract.sqnr_db)
        elif isinstance(contract, OutputContract):
            self.require_output_contract(contract)

    def require_output_contract(self, contract: OutputContract) -> None:
        """Raise :class:`ContractViolation` unless the tensors at each place of the output keep ``contract``."""
        __tracebackhide__ = True
        by_path: dict[str, list[Leaf]] = {}
        for leaf in self._leaves(self.eager, self.actual):
            by_path.setdefault(leaf.path, []).append(leaf)
        for path, pairs in by_path.items():
            if (difference := contract.broken(pairs)) is not None:
                raise ContractViolation(
                    f"{self.program} changes {self._what} by more than it promises",
                    where=self._place(path),
                    value=difference,
                    why=f"its contract is {contract}",
                    kind=f"{type(contract).__name__} of {self.whose}",
                )

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
        """Raise :class:`ContractViolation` if the signal-to-noise ratio of an output is below ``sqnr_db`` decibels."""
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
        """Return the floating-point tensors at each place of the output, beside the best available reference.

        The reference is eager's tensor in the working dtype if the program's equals it: an unchanged output then
        satisfies any ratio.
        """
        outputs: dict[str, list[Leaf]] = {}
        for best, own in zip(self._against_best(self.actual), self._leaves(self.eager, self.actual), strict=True):
            if own.is_float:
                is_kept = same_tensor(own.expected, own.actual)
                outputs.setdefault(own.path, []).append(own if is_kept else best)
        return outputs

    def float_leaves(self, expected: Sequence[Any], actual: Sequence[Any]) -> list[Leaf]:
        """Return the floating-point tensors of outputs side by side."""
        return [leaf for leaf in self._leaves(expected, actual) if leaf.actual.is_floating_point()]

    def largest_error(self) -> float:
        """Return the largest error of the program in the working dtype against eager in float64, where it was run."""
        return _largest_of(self._against_float64(self.actual))

    def bound_of_largest_error(self, contract: Close) -> float:
        """Return the limit, in the working dtype, of the element with the largest error."""
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
        """Return the leaves of the float64 outputs side by side.

        If they do not match, such as in dtype, an error in the working dtype is raised first.
        """
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
                eager_value = bound.eager.actual[difference.index].item()
                value = f"eager {eager_value!r}, transformed {difference.actual!r}"
                if eager_value != difference.expected:
                    value += f"\neager in float64 {difference.expected!r}"
                raise self._violation(difference, bound.promise(contract, difference), value, "rounding")

    def rounding_bounds(self, contract: Close) -> list[RoundingBound]:
        """Return each tensor in the working dtype with the error that each of its elements may have.

        It is the largest of three: a few times eager's largest error, eager's error in that very element, and the
        contract's tolerances where they are wider than the default ones.
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
            # In float64 the contract's tolerances apply as they are.
            is_float64 = leaf.actual.dtype in (torch.float64, torch.complex128)
            tolerances = (contract.rtol, contract.atol) if is_float64 else contract.in_working_dtype
            limits = torch.maximum(eager.errors.clamp_(min=limit), leaf.limits(*tolerances))
            bounds.append(RoundingBound(leaf, eager, limits, eager_error[leaf.path], tolerances))
        return bounds

    def _deviation(self, position: int, leaf: Leaf, float64: bool) -> torch.Tensor:
        """Return how far each element of a tensor moves when eager's values are perturbed; zeros if that is unknown."""
        deviation = None if self.deviation is None else self.deviation(position, float64)
        return torch.zeros_like(leaf.errors) if deviation is None else deviation

    def _eager_error(self, difference: Difference) -> str:
        """Return a clause on eager's rounding error in the dtype of ``difference``, to judge its size by."""
        return f"eager's rounding error in {dtype_name(difference.dtype)} is at most {self.largest_eager_error():.2g}"

    def _remedy_of_exact(self) -> str | None:
        """Return a remedy for differing bits, or None if more than rounding differs."""
        try:
            self.require_close(close)
        except ContractViolation:
            return None
        return "promise `close` if the pass reorders arithmetic"

    def _in_working_dtype(self, position: int, difference: Difference) -> tuple[Difference, str]:
        """Return a difference in float64 as one in the working dtype, and its element as printed in both dtypes."""
        value64, pairs = _values(difference), self._leaves(self.eager, self.eager)
        actual = self._beside(self.actual, position, difference)
        if position >= len(pairs) or actual is None:
            return difference, f"in float64 {value64}"
        eager = self._beside(self.eager, position, difference)
        value = f"eager {eager}, transformed {actual}"
        both = value if value == value64 else f"{value}\nin float64 {value64}"
        return replace(difference, dtype=pairs[position].actual.dtype, ulps=None), both

    def _beside(self, outputs: Sequence[Any], position: int, difference: Difference) -> str | None:
        """Return the element of ``outputs`` at the place of ``difference``, printed; None if there is no such place."""
        pairs = self._leaves(outputs, outputs)
        if position >= len(pairs) or pairs[position].actual.ndim != len(difference.index):
            return None
        return repr(pairs[position].actual[difference.index].item())

    def _violation(
        self, difference: Difference, promise: str, value: str, kind: str, remedy: str | None = None
    ) -> ContractViolation:
        """Return the error to raise; ``value`` shows the worst element, and eager's value of it in another dtype."""
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
        is_output = self.whose in ("output", SELECTED)
        return f"what {self.model} {'computes' if is_output else f'writes to its {self.whose}s'}"

    def _place(self, path: str) -> str:
        """Return words for the tensor at ``path``. Written inputs and buffers are in a dict by place or name."""
        if self.whose == "output":
            return f"output{path}"
        if self.whose == SELECTED:
            return f"output{path[2:-2]}"
        return f"input{path[2:-2]}" if self.whose == "input" else f"buffer {path[2:-2]}"

    def _against_float64(self, outputs: Sequence[Any]) -> list[Leaf]:
        """Return the leaves of outputs in the working dtype beside the float64 reference, where there is one."""
        __tracebackhide__ = True
        self._leaves(self.eager, outputs)  # raises if a dtype is not eager's
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

        ``how`` begins the sentence about the mismatch.
        """
        __tracebackhide__ = True
        pairs: list[Leaf] = []
        for reference, output in zip(expected, actual, strict=True):
            pairing = pair_leaves(reference, output, same_dtype, self._place)
            if isinstance(pairing, Mismatch):
                changed = f"what {self.model} returns" if self.whose in ("output", SELECTED) else self._what
                raise ContractViolation(
                    f"{self.program} changes {changed}", why=f"{how}{pairing.text}", kind=f"result's {pairing.kind}"
                )
            pairs.extend(pairing)
        return pairs


def near(
    eager: Sequence[Any],
    actual: Sequence[Any],
    known: Sequence[Any],
    known64: Sequence[Any],
    contract: Contract = close,
) -> bool:
    """Return whether rounding errors explain the differences between a program's outputs and eager's.

    Outputs are in the working dtype, without a float64 reference. The size of eager's errors is taken from other
    inputs: ``known`` has eager's outputs for them in the working dtype, ``known64`` in float64.
    """
    errors: dict[str, float] = {}
    for output, output64 in zip(known, known64, strict=True):
        pairing = pair_leaves(output64, output, same_dtype=False)
        for leaf in [] if isinstance(pairing, Mismatch) else pairing:
            errors[leaf.path] = max(errors.get(leaf.path, 0.0), rounding_error(leaf))
    for expected, output in zip(eager, actual, strict=True):
        pairing = pair_leaves(expected, output)
        if isinstance(pairing, Mismatch):
            return False
        for leaf in pairing:
            own = errors.get(leaf.path, 0.0)
            if not _largest(leaf) <= own + _rounding_limit(leaf.actual.dtype, own, leaf.scale, contract):
                return False
    return True


def rounding_error(leaf: Leaf) -> float:
    """Return the largest rounding error of a tensor; 0 for integers.

    Errors far outside the others do not count: they come from elements at a step, such as an index at a tie. Integers
    have only such errors.
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
    """Return the error that each element may have in the working dtype if ``eager_error`` is eager's largest error."""
    limits = torch.full_like(leaf.errors, _rounding_limit(leaf.actual.dtype, eager_error, leaf.scale, contract))
    return torch.maximum(limits, leaf.limits(*contract.in_working_dtype)) if isinstance(contract, Close) else limits


def _rounding_limit(dtype: torch.dtype, eager_error: float, scale: float, contract: Contract) -> float:
    factor = contract.error_factor if isinstance(contract, Close) else close.error_factor
    return max(factor * eager_error, _floor(dtype, scale))


def _floor(dtype: torch.dtype, scale: float) -> float:
    """Return the error that is allowed even if eager, by luck, has none."""
    ulp = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
    return ERROR_FLOOR_ULPS * ulp * scale


def _values(difference: Difference) -> str:
    return f"eager {difference.expected!r}, transformed {difference.actual!r}"


def _largest_of(leaves: Sequence[Leaf]) -> float:
    """Return the largest error of floating-point tensors. Integers, such as indices or classes, have no error size."""
    return max((_largest(leaf) for leaf in leaves if leaf.is_float), default=0.0)


def _largest(leaf: Leaf) -> float:
    errors = leaf.errors
    return float(errors.max()) if errors.numel() else 0.0
