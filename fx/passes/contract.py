"""What a pass promises about the numbers that a program computes: the verifier holds it to that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from fx.arguments import shown
from fx.errors import PassError


def _is_finite(number: object) -> bool:
    try:
        return isinstance(number, Real) and math.isfinite(number)
    except OverflowError:  # an integer that no float holds
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

    In float64 they agree within ``rtol`` and ``atol``. In the working dtype they are no further from the float64
    answer than a small factor of eager's own error: a bound on two float32 runs would either refuse correct passes
    or hide wrong ones.
    """

    rtol: float = 1e-5
    """Relative tolerance between the two programs in float64."""
    atol: float = 1e-8
    """Absolute tolerance between the two programs in float64, in units of the output."""

    def __post_init__(self) -> None:
        for label, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if not _is_finite(tolerance) or tolerance < 0:
                raise PassError(
                    f"a contract's {label} must be finite and not negative",
                    value=shown(tolerance),
                    remedy="leave it out",
                )
            object.__setattr__(self, label, float(tolerance))

    def __str__(self) -> str:
        return f"close(rtol={self.rtol:g}, atol={self.atol:g})"


@dataclass(frozen=True, slots=True)
class Approximate(Contract):
    """Outputs are near enough by signal-to-noise ratio, as a quantized program's are (section 6.2.1)."""

    sqnr_db: float
    """Smallest allowed ratio of signal to quantization noise of each output, in decibels."""

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

    Raises :class:`~fx.errors.PassError` if that attribute is something else than a contract.
    """
    contract = getattr(pass_, "contract", close)
    if not isinstance(contract, Contract):
        raise PassError(
            "a pass carries a contract that is none",
            where=pass_,
            value=shown(contract),
            remedy="set `contract` to `exact`, `close` or `approximate(sqnr_db=…)` of fx.passes",
        )
    return contract
