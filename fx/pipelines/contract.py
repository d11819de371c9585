"""Contracts: a pass's promise about the numerical results of the program, which the verifier checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from fx.arguments import shown
from fx.errors import PassError


def _is_finite(number: object) -> bool:
    try:
        return isinstance(number, Real) and math.isfinite(number)
    except OverflowError:  # an integer too large for a float
        return False


@dataclass(frozen=True, slots=True)
class Contract:
    """Base of the three promises a pass can make: :class:`Exact`, :class:`Close`, :class:`Approximate`."""


@dataclass(frozen=True, slots=True)
class Exact(Contract):
    """Outputs are bitwise equal to those of the program before the pass."""

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True, slots=True)
class Close(Contract):
    """Outputs are equal up to rounding (paper, section 6.2).

    In float64 they agree within ``rtol`` and ``atol``. In the working dtype their distance from the float64 output is
    at most a small factor of eager's own error. A bound on two float32 runs would either refuse correct passes or hide
    wrong ones. Tolerances wider than the default ones also apply in the working dtype, where they allow more than that.
    """

    rtol: float = 1e-5
    """Relative tolerance between the two programs in float64."""
    atol: float = 1e-8
    """Absolute tolerance between the two programs in float64, in units of the output."""
    error_factor: float = 8.0
    """Largest allowed error in the working dtype, in multiples of eager's own error.

    Two correct orders of the same arithmetic round differently. We folded batch norms in 66 random ResNets. The largest
    error was 0.95 to 1.3 times eager's with 1,000 outputs, 0.3 to 3.1 times with 80, and 0.5 to 5.8 times with 10. The
    factor leaves three bits. It is meant to catch precision lost in half-precision or TF32 steps, which costs a factor
    of 2**10 and more; errors of any size in the formulas are caught in float64.
    """

    def __post_init__(self) -> None:
        for label in ("rtol", "atol", "error_factor"):
            tolerance = getattr(self, label)
            if not _is_finite(tolerance) or tolerance < 0:
                raise PassError(
                    f"a contract's {label} must be finite and not negative",
                    value=shown(tolerance),
                    remedy="leave it out",
                )
            object.__setattr__(self, label, float(tolerance))

    @property
    def in_working_dtype(self) -> tuple[float, float]:
        """``rtol`` and ``atol`` for the working dtype: each as given if wider than the default, otherwise 0."""
        return self.rtol if self.rtol > close.rtol else 0.0, self.atol if self.atol > close.atol else 0.0

    def __str__(self) -> str:
        factor = "" if self.error_factor == close.error_factor else f", error_factor={self.error_factor:g}"
        return f"close(rtol={self.rtol:g}, atol={self.atol:g}{factor})"


@dataclass(frozen=True, slots=True)
class Approximate(Contract):
    """Outputs keep a minimal signal-to-noise ratio, as those of a quantized program do (section 6.2.1)."""

    sqnr_db: float
    """Smallest allowed signal-to-quantization-noise ratio of each output, in decibels."""

    def __post_init__(self) -> None:
        if not _is_finite(self.sqnr_db):
            raise PassError(
                "a contract's sqnr_db must be a finite number of decibels",
                value=shown(self.sqnr_db),
                remedy="promise `exact` where outputs must not change at all",
            )
        object.__setattr__(self, "sqnr_db", float(self.sqnr_db))

    def __str__(self) -> str:
        return f"approximate(sqnr_db={self.sqnr_db:g})"


exact = Exact()
"""The promise of passes that only move, merge or drop work."""

close = Close()
"""The promise of passes that reorder arithmetic, with the paper's bound; assumed of a pass that says nothing."""


def approximate(sqnr_db: float) -> Approximate:
    """Return the promise of a pass that trades accuracy for speed, e.g. ``contract = approximate(sqnr_db=30)``."""
    return Approximate(sqnr_db)


def contract_of(pass_: object) -> Contract:
    """Return the contract that ``pass_`` carries in its attribute ``contract``, or :data:`close` if it carries none.

    Raises :class:`~fx.errors.PassError` if that attribute is not a contract.
    """
    contract = getattr(pass_, "contract", close)
    if not isinstance(contract, Contract):
        raise PassError(
            "the contract of a pass is not a Contract",
            where=pass_,
            value=shown(contract),
            remedy="set `contract` to `exact`, `close` or `approximate(sqnr_db=…)` of fx.passes",
        )
    return contract
