"""Observers: modules that pass values through and remember their range (paper, section 6.2.1, phases 1 and 2).

All observers process a stream, keep their state in buffers, and can be merged. Two copies of a program may see two
parts of the data: their merged observers equal those of one copy that saw all of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fx.argument_types import Bounds, checked
from fx.arguments import refusal
from fx.errors import QuantizationError
from fx.quantize.affine import Affine, Bits, Percentile
from fx.quantize.declaration import listed

if TYPE_CHECKING:
    from fx.quantize.scheme import Choice, ObserverName


class Observer(nn.Module):
    """Base of observers: a module that checks its input, returns it unchanged, and updates its statistics."""

    _leaf_reason: ClassVar[str] = "it observes"

    if TYPE_CHECKING:
        count: Tensor

    @checked(QuantizationError)
    def __init__(self, bits: Bits = 8, symmetric: bool = False, place: str = "") -> None:
        """Create an observer of one value of a program.

        Args:
            bits: how many bits the integers will have.
            symmetric: whether zero will be in the middle of them.
            place: which value it is, for error messages: the node and the user's line.
        """
        super().__init__()
        self.bits = bits
        self.symmetric = symmetric
        self.place = place
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """Remember the range of ``input`` and return it.

        Raises:
            QuantizationError: ``input`` has no elements, or some that are not finite, or ``torch.export`` runs this.
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
        """True if it has seen any value."""
        return bool(self.count)

    def affine(self) -> Affine:
        """Return the map to integers for the observed values.

        Raises:
            QuantizationError: no value was observed.
        """
        if not self.is_calibrated:
            raise self._error("this value was never calibrated", None, "run data through the prepared program first")
        low, high = self._range()
        return Affine.of_range(low, high, bits=self.bits, symmetric=self.symmetric)

    @checked(QuantizationError)
    def merge(self, other: Observer) -> None:
        """Add what ``other``, an observer of the same kind, saw after this one.

        Raises:
            QuantizationError: ``other`` is of another kind, or has other settings.
        """
        mine, theirs = (_settings(observer) for observer in (self, other))
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
        """Update the statistics with ``values``, which reach from ``low`` to ``high``."""

    @abstractmethod
    def _range(self) -> tuple[float, float]:
        """Return the range to represent."""

    @abstractmethod
    def _merge(self, other: Any) -> None:
        """Add the statistics of ``other``; both observers saw values."""

    def _error(self, what: str, why: str | None, remedy: str | None) -> QuantizationError:
        return QuantizationError(what, where=self.place or None, why=why, remedy=remedy)


def refuse_export(place: str) -> None:
    """Raise a ``QuantizationError`` that names the observed value if ``torch.export`` runs a prepared program."""
    if torch.compiler.is_exporting():
        raise QuantizationError(
            "a prepared program cannot be exported",
            where=place or None,
            why="its observers branch on the values that they see, which are known only when it runs",
            remedy="export the program before it is prepared, or convert it first",
        )


def _settings(observer: Observer) -> tuple[str, dict[str, Any]]:
    plain = {name: value for name, value in vars(observer).items() if isinstance(value, (int, float, str, bool))}
    return type(observer).__name__, {name: value for name, value in plain.items() if name not in ("training", "place")}


@listed
class MinMaxObserver(Observer):
    """An observer whose range covers all values: the cheapest, and right if there are no outliers."""

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
    """An observer of the moving average of the ranges of batches, which follows drift, such as that of trained weights.

    The result depends on the order of batches; ``merge`` takes the batches of ``other`` as the later ones.
    """

    if TYPE_CHECKING:
        bounds: Tensor
        first: Tensor

    @checked(QuantizationError)
    def __init__(
        self,
        bits: Bits = 8,
        symmetric: bool = False,
        place: str = "",
        momentum: Annotated[float, Bounds(0, 1, excludes_least=True)] = 0.01,
    ) -> None:
        """Create an observer; see :class:`Observer`.

        Args:
            momentum: the weight of a new batch in the average.
        """
        super().__init__(bits, symmetric, place)
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
        # `other` started from its first batch; as a later batch of `self`, that batch counts only by the momentum
        decay = (1 - self.momentum) ** int(other.count)
        self.bounds.sub_(other.first).mul_(decay).add_(other.bounds)


@listed
class HistogramObserver(MinMaxObserver):
    """An observer of the range with the least mean squared error, by a histogram of all values.

    The bins are the same for all data, 512 to each power of two, and hold integer counts. So the sum of two histograms
    is exactly the histogram of all the data.
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
        """Return the middles of the bins that are not empty, in order, and their counts."""
        index = self.bins.nonzero().squeeze(1)
        middles = _MIDDLES.to(self.bins.device)[index].clamp(self.low.double(), self.high.double())
        order = middles.argsort()
        return middles[order], self.bins[index][order].double()

    def _candidates(self) -> Iterable[tuple[float, float]]:
        """Yield ranges to try: all values, then smaller by steps at both ends, then at each end alone."""
        low, high = super()._range()
        steps = [1 - number / _STEPS for number in range(_STEPS)]
        yield from ((low * part, high * part) for part in steps)
        yield from ((low * part, high) for part in steps[1:])
        yield from ((low, high * part) for part in steps[1:])


@listed
class PercentileObserver(HistogramObserver):
    """An observer whose range covers a given percentage of values and lets outliers saturate."""

    @checked(QuantizationError)
    def __init__(
        self, bits: Bits = 8, symmetric: bool = False, place: str = "", percentile: Percentile = 99.99
    ) -> None:
        """Create an observer; see :class:`Observer`.

        Args:
            percentile: the percentage of values inside the range; half of the others are left out at each end.
        """
        super().__init__(bits, symmetric, place)
        self.percentile = percentile

    def _range(self) -> tuple[float, float]:
        values, counts = self._seen()
        cumulated = counts.cumsum(0)
        outside = (1 - self.percentile / 100) / 2 * float(cumulated[-1])
        low = values[torch.searchsorted(cumulated, outside, right=True).clamp(max=len(values) - 1)]
        high = values[torch.searchsorted(cumulated, float(cumulated[-1]) - outside).clamp(max=len(values) - 1)]
        return low.item(), high.item()


_BITS = 9
"""The bits of a float32's fraction that distinguish bins: neighbours differ by a fifth of a percent."""
_SMALLEST = -40
"""The power of two below which all values share one bin."""
_HALF = 1 << 15
"""The number of bins for positive numbers, up to the power of two 24; there are as many for negative ones."""
_CHUNK = 1 << 18
_STEPS = 64
"""The number of ranges that a histogram observer tries at each end."""


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
    """Return the sum of squared errors of values stored by ``affine``."""
    quantized = (values / affine.scale).round_().add_(affine.zero_point).clamp_(0, affine.highest)
    error = quantized.sub_(affine.zero_point).mul_(affine.scale).sub_(values)
    return float((error.square_() * counts).sum())


@checked(QuantizationError)
def merge_observers(prepared: nn.Module, other: nn.Module) -> None:
    """Add to the observers of a prepared program the statistics of a copy of it that saw another part of the data.

    Args:
        prepared: the program whose observers change.
        other: the copy, perhaps from another process; it stays as it is.

    Raises:
        QuantizationError: the two have different observers.
    """
    mine, theirs = (
        {path: module for path, module in program.named_modules() if isinstance(module, Observer)}
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
    """Return a new observer of a value whose operation is quantized by ``choice``."""
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
