"""Observers: modules that pass values through and remember their range (paper, section 6.2.1, phases 1 and 2).

All of them work in a stream, keep their state in buffers, and can be merged: what two copies of a program saw on two
parts of the data is, merged, what one of them would have seen on all of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fx.arguments import expect, refusal
from fx.errors import QuantizationError
from fx.quantize.affine import Affine, expect_bits
from fx.quantize.declaration import listed

if TYPE_CHECKING:
    from fx.quantize.scheme import Choice, ObserverName


class Observer(nn.Module):
    """Base of observers: checks what it is given, returns it as it is, and remembers something of it."""

    _leaf_reason: ClassVar[str] = "it observes"

    if TYPE_CHECKING:
        count: Tensor

    def __init__(self, bits: int = 8, symmetric: bool = False, place: str = "") -> None:
        """An observer of one value of a program.

        Args:
            bits: how many bits the integers will have.
            symmetric: whether zero will be in the middle of them.
            place: which value it is, for error messages: the node and the user's line.
        """
        super().__init__()
        expect_bits(bits, "an observer")
        expect(symmetric, bool, "an observer takes true or false for symmetric", error=QuantizationError)
        expect(place, str, "an observer takes text for its place", error=QuantizationError)
        self.bits = bits
        self.symmetric = symmetric
        self.place = place
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """Remember the range of ``input`` and return it.

        Raises:
            QuantizationError: it has no elements, or some that are not finite numbers, or ``torch.export`` runs this.
        """
        if not isinstance(input, Tensor):
            raise refusal("an observer takes a tensor", input, error=QuantizationError)
        refuse_export(self.place)
        values = input.detach()
        if values.numel() == 0:
            raise self._error("calibration gave a tensor without elements", "it has no range", "leave such batches out")
        low, high = (bound.float() for bound in torch.aminmax(values))
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise self._error(
                "calibration gave values that are not finite",
                f"they reach from {low.item()} to {high.item()}",
                "look for the batch or the operation that makes NaN or infinity, or skip the operation in the scheme",
            )
        self._observe(values, low, high)
        self.count += 1
        return input

    @property
    def is_calibrated(self) -> bool:
        """Return whether it has seen anything."""
        return bool(self.count)

    def affine(self) -> Affine:
        """The map to integers for what was seen.

        Raises:
            QuantizationError: nothing was.
        """
        if not self.is_calibrated:
            raise self._error("this value was never calibrated", None, "run data through the prepared program first")
        low, high = self._range()
        return Affine.of_range(low, high, bits=self.bits, symmetric=self.symmetric)

    def merge(self, other: Observer) -> None:
        """Add what ``other``, an observer of the same kind, saw after this one.

        Raises:
            QuantizationError: it is of another kind, or has other settings.
        """
        expect(other, Observer, "Observer.merge takes an Observer", error=QuantizationError)
        mine, theirs = (_settings(one) for one in (self, other))
        if mine != theirs:
            raise self._error("observers of different kinds cannot be merged", f"{mine} and {theirs}", None)
        if other.is_calibrated:
            if self.is_calibrated:
                self._merge(other)
                self.count += other.count
            else:
                self.load_state_dict(other.state_dict())

    @abstractmethod
    def _observe(self, values: Tensor, low: Tensor, high: Tensor) -> None:
        """Remember something of ``values``, which reach from ``low`` to ``high``."""

    @abstractmethod
    def _range(self) -> tuple[float, float]:
        """The range to represent."""

    @abstractmethod
    def _merge(self, other: Any) -> None:
        """Add what ``other`` saw; both saw something."""

    def _error(self, what: str, why: str | None, remedy: str | None) -> QuantizationError:
        return QuantizationError(what, where=self.place or None, why=why, remedy=remedy)


def refuse_export(place: str) -> None:
    """Raise a ``QuantizationError`` that names what is observed where ``torch.export`` runs a prepared program."""
    if torch.compiler.is_exporting():
        raise QuantizationError(
            "a prepared program cannot be exported",
            where=place or None,
            why="what its observers do is decided by the values that they see, which are known only when it runs",
            remedy="export the program before it is prepared, or convert it first",
        )


def _settings(observer: Observer) -> tuple[str, dict[str, Any]]:
    plain = {name: value for name, value in vars(observer).items() if isinstance(value, (int, float, str, bool))}
    return type(observer).__name__, {name: value for name, value in plain.items() if name not in ("training", "place")}


@listed
class MinMaxObserver(Observer):
    """Covers all that was seen: the cheapest, and right where there are no outliers."""

    if TYPE_CHECKING:
        low: Tensor
        high: Tensor

    def __init__(self, bits: int = 8, symmetric: bool = False, place: str = "") -> None:
        super().__init__(bits, symmetric, place)
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def _observe(self, values: Tensor, low: Tensor, high: Tensor) -> None:
        if self.is_calibrated:
            low, high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.low.copy_(low)
        self.high.copy_(high)

    def _range(self) -> tuple[float, float]:
        return self.low.item(), self.high.item()

    def _merge(self, other: Any) -> None:
        self.low.copy_(torch.minimum(self.low, other.low))
        self.high.copy_(torch.maximum(self.high, other.high))


@listed
class MovingAverageObserver(Observer):
    """Covers a moving average of the ranges of batches, which follows what drifts, as weights in training do.

    Batches in a different order give something else, so ``merge`` takes what ``other`` saw as the later part.
    """

    if TYPE_CHECKING:
        bounds: Tensor
        first: Tensor

    def __init__(self, bits: int = 8, symmetric: bool = False, place: str = "", momentum: float = 0.01) -> None:
        """An observer; see :class:`Observer`.

        Args:
            momentum: how much of the average a new batch becomes.
        """
        super().__init__(bits, symmetric, place)
        if not isinstance(momentum, Real) or not 0 < momentum <= 1:
            raise refusal("the momentum of an observer is more than 0 and at most 1", momentum, error=QuantizationError)
        self.momentum = momentum
        self.register_buffer("bounds", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("first", torch.zeros(2, dtype=torch.float64))

    def _observe(self, values: Tensor, low: Tensor, high: Tensor) -> None:
        bounds = torch.stack((low, high)).double()
        if self.is_calibrated:
            self.bounds.lerp_(bounds, self.momentum)
        else:
            self.bounds.copy_(bounds)
            self.first.copy_(bounds)

    def _range(self) -> tuple[float, float]:
        low, high = self.bounds.tolist()
        return low, high

    def _merge(self, other: Any) -> None:
        # the other one took its first batch whole, where after this one it would have counted by the momentum
        decay = (1 - self.momentum) ** int(other.count)
        self.bounds.sub_(other.first).mul_(decay).add_(other.bounds)


@listed
class HistogramObserver(MinMaxObserver):
    """Covers the range that makes the mean squared error least, by a histogram of all that was seen.

    The bins are the same for all data, 512 to each power of two, and hold whole counts: merging histograms is adding
    them, and gives exactly what one would have seen.
    """

    if TYPE_CHECKING:
        bins: Tensor

    def __init__(self, bits: int = 8, symmetric: bool = False, place: str = "") -> None:
        super().__init__(bits, symmetric, place)
        self.register_buffer("bins", torch.zeros(2 * _HALF, dtype=torch.int64))

    def _observe(self, values: Tensor, low: Tensor, high: Tensor) -> None:
        for part in values.reshape(-1).split(_CHUNK):
            self.bins += torch.bincount(_bin_of(part), minlength=2 * _HALF)
        super()._observe(values, low, high)

    def _range(self) -> tuple[float, float]:
        values, counts = self._seen()
        best, least = super()._range(), float("inf")
        for low, high in self._candidates():
            affine = Affine.of_range(low, high, bits=self.bits, symmetric=self.symmetric)
            error = _squared_error(values, counts, affine)
            if error < least:
                best, least = (low, high), error
        return best

    def _merge(self, other: Any) -> None:
        self.bins += other.bins
        super()._merge(other)

    def _seen(self) -> tuple[Tensor, Tensor]:
        """The middles of the bins that have something in them, in order, and how much they have."""
        index = self.bins.nonzero().squeeze(1)
        middles = _MIDDLES.to(self.bins.device)[index].clamp(self.low.double(), self.high.double())
        order = middles.argsort()
        return middles[order], self.bins[index][order].double()

    def _candidates(self) -> Iterable[tuple[float, float]]:
        """Ranges to try: from all that was seen, smaller by steps at both ends, then at each end alone."""
        low, high = super()._range()
        steps = [1 - number / _STEPS for number in range(_STEPS)]
        yield from ((low * part, high * part) for part in steps)
        yield from ((low * part, high) for part in steps[1:])
        yield from ((low, high * part) for part in steps[1:])


@listed
class PercentileObserver(HistogramObserver):
    """Covers a given part of what was seen, and lets outliers saturate."""

    def __init__(self, bits: int = 8, symmetric: bool = False, place: str = "", percentile: float = 99.99) -> None:
        """An observer; see :class:`Observer`.

        Args:
            percentile: how much of the values is to be inside the range, in percent; as much is left out at each end.
        """
        super().__init__(bits, symmetric, place)
        if not isinstance(percentile, Real) or not 50 < percentile <= 100:
            what = "the percentile of an observer is more than 50 and at most 100"
            raise refusal(what, percentile, error=QuantizationError)
        self.percentile = percentile

    def _range(self) -> tuple[float, float]:
        values, counts = self._seen()
        cumulated = counts.cumsum(0)
        outside = (1 - self.percentile / 100) / 2 * float(cumulated[-1])
        low = values[torch.searchsorted(cumulated, outside, right=True).clamp(max=len(values) - 1)]
        high = values[torch.searchsorted(cumulated, float(cumulated[-1]) - outside).clamp(max=len(values) - 1)]
        return low.item(), high.item()


_BITS = 9
"""How many bits of the fraction of a float32 tell bins apart: neighbours differ by a fifth of a percent."""
_SMALLEST = -40
"""Power of two under which all is in one bin."""
_HALF = 1 << 15
"""Bins of positive numbers, up to the power of two 24; as many are for negative ones."""
_CHUNK = 1 << 18
_STEPS = 64
"""How many ranges a histogram observer tries at each end."""


def _bin_of(values: Tensor) -> Tensor:
    bits = values.float().contiguous().view(torch.int32)
    place = (bits & 0x7FFFFFFF) >> (23 - _BITS)
    place = (place - ((127 + _SMALLEST) << _BITS)).clamp_(0, _HALF - 1)
    return torch.where(bits < 0, place + _HALF, place)


def _middles() -> Tensor:
    place = torch.arange(_HALF, dtype=torch.int32) + ((127 + _SMALLEST) << _BITS)
    middle = ((place << (23 - _BITS)) + (1 << (22 - _BITS))).view(torch.float32).double()
    middle[0] = 0.0
    return torch.cat((middle, -middle))


_MIDDLES = _middles()
"""The value in the middle of each bin."""


def _squared_error(values: Tensor, counts: Tensor, affine: Affine) -> float:
    """The sum of squared errors of what is stored as ``affine`` says."""
    quantized = (values / affine.scale).round_().add_(affine.zero_point).clamp_(0, affine.highest)
    error = quantized.sub_(affine.zero_point).mul_(affine.scale).sub_(values)
    return float((error.square_() * counts).sum())


def merge_observers(prepared: nn.Module, other: nn.Module) -> None:
    """Add to the observers of a prepared program what those of a copy of it saw, on another part of the data.

    Args:
        prepared: the program whose observers change.
        other: the copy, perhaps from another process; it stays as it is.

    Raises:
        QuantizationError: the two have different observers.
    """
    for program in (prepared, other):
        expect(program, nn.Module, "merge_observers takes prepared programs", error=QuantizationError)
    mine, theirs = (
        {path: one for path, one in program.named_modules() if isinstance(one, Observer)}
        for program in (prepared, other)
    )
    if mine.keys() != theirs.keys():
        raise QuantizationError(
            "the observers of two different programs cannot be merged",
            value=", ".join(sorted(mine.keys() ^ theirs.keys())[:10]),
            why="these are only in one of them",
            remedy="merge copies of one prepared program",
        )
    for path, observer in mine.items():
        observer.merge(theirs[path])


def make_observer(choice: Choice, place: str) -> Observer:
    """The observer of a value whose operation is quantized as ``choice`` says."""
    bits, symmetric = choice.activation_bits, choice.symmetric
    if choice.observer == "percentile":
        return PercentileObserver(bits, symmetric, place, choice.percentile)
    return OBSERVERS[choice.observer](bits, symmetric, place)


OBSERVERS: dict[ObserverName, type[Observer]] = {
    "min-max": MinMaxObserver,
    "moving-average": MovingAverageObserver,
    "histogram": HistogramObserver,
    "percentile": PercentileObserver,
}
"""The classes of observers, by their names in schemes."""
