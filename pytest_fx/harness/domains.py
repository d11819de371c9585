"""Domains of inputs: the values that a model is meant for. Inputs that we draw or vary keep to them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

import torch

from fx.argument_types import checked
from fx.arguments import shown
from pytest_fx.errors import InputError
from pytest_fx.harness.evaluation import Arguments, places
from pytest_fx.harness.structure import map_tensors

ROUNDING = 64
"""Distance from 1 that the sum of a row of a distribution may have, in ulp for each root of its length."""


class Domain(abc.ABC):
    """The values that one tensor of the inputs may have."""

    @abc.abstractmethod
    def __str__(self) -> str: ...

    @property
    def text(self) -> str:
        """The domain as an expression; its numbers have all their digits."""
        return str(self)

    @abc.abstractmethod
    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the domain near to ``tensor``, of the same shape and dtype."""

    @abc.abstractmethod
    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Return a random tensor of the domain."""

    def contains(self, tensor: torch.Tensor) -> bool:
        """Return whether the values of ``tensor`` are in the domain."""
        return bool(torch.equal(self.mended(tensor), tensor))


@dataclass(frozen=True, slots=True)
class Interval(Domain):
    """Numbers from ``low`` to ``high``, both included, such as the pixels of an image in [0, 1].

    >>> between(0, 1).mended(torch.tensor([-1.0, 0.5, 2.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """

    low: float
    """The smallest number."""
    high: float
    """The largest number."""

    def __post_init__(self) -> None:
        """Refuse bounds without a number between them."""
        _require_bounds("between", self.low, self.high, at_least=0)

    def __str__(self) -> str:
        return f"between({self.low:g}, {self.high:g})"

    @property
    def text(self) -> str:
        """The domain as an expression, with bounds that are no sizes: floating-point numbers."""
        return f"between({float(self.low)!r}, {float(self.high)!r})"

    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move elements outside of the interval to its nearer end, and NaN to its middle."""
        middle = self.low + (self.high - self.low) / 2
        values = tensor.nan_to_num(middle, math.inf, -math.inf) if tensor.is_floating_point() else tensor
        return values.clamp(self.low, self.high).to(tensor.dtype)

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw uniformly."""
        return self.low + (self.high - self.low) * torch.rand(shape, generator=generator)


@dataclass(frozen=True, slots=True)
class Integers(Domain):
    """Integers from ``low`` up to, and without, ``high``, in a tensor of any dtype, such as indices of tokens.

    >>> integers(0, 10).mended(torch.tensor([-1, 3, 12]))
    tensor([9, 3, 2])
    """

    low: int
    """The smallest integer."""
    high: int
    """The integer after the largest one, as ``torch.randint`` takes it."""

    def __post_init__(self) -> None:
        """Refuse bounds without an integer between them."""
        _require_bounds("integers", self.low, self.high, at_least=1)

    def __str__(self) -> str:
        return f"integers({self.low}, {self.high})"

    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Round elements, and wrap those outside of the range into it."""
        values = tensor.nan_to_num(0.0, 0.0, 0.0).round() if tensor.is_floating_point() else tensor
        inside = (values >= self.low) & (values < self.high)
        wrapped = (values.to(torch.int64) - self.low).remainder(self.high - self.low) + self.low
        return torch.where(inside, values, wrapped.to(tensor.dtype))

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw uniformly, in int64."""
        return torch.randint(self.low, self.high, shape, generator=generator)


@dataclass(frozen=True, slots=True)
class Probabilities(Domain):
    """Probabilities: numbers that are not negative and sum to 1 along a dimension.

    >>> sums_to_one().mended(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """

    dim: int = -1
    """The dimension."""

    def __str__(self) -> str:
        return f"sums_to_one(dim={self.dim})"

    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Divide by the sum without negative elements; a row of zeros becomes uniform."""
        values = tensor.nan_to_num(0.0, 0.0, 0.0).clamp(min=0).double()
        sums = values.sum(self.dim, keepdim=True)
        values = torch.where(sums > 0, values / sums, 1.0 / max(1, tensor.shape[self.dim]))
        return values.to(tensor.dtype)

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw uniformly among all distributions."""
        return self.mended(-torch.rand(shape, generator=generator).clamp(min=1e-6).log())

    def contains(self, tensor: torch.Tensor) -> bool:
        """Allow for the rounding errors of a sum."""
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()) or bool((tensor < 0).any()):
            return False
        limit = ROUNDING * torch.finfo(tensor.dtype).eps * math.sqrt(tensor.shape[self.dim])
        return bool(((tensor.double().sum(self.dim) - 1).abs() <= limit).all())


@dataclass(frozen=True, slots=True)
class RightPadded(Domain):
    """Masks whose rows have ones, at least one, and then zeros.

    >>> right_padded().mended(torch.tensor([[0, 1, 1], [0, 0, 0]]))
    tensor([[1, 1, 0],
            [1, 0, 0]])
    """

    def __str__(self) -> str:
        return "right_padded()"

    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the number of ones in each row, and move them to its beginning."""
        lengths = (tensor != 0).sum(-1, keepdim=True).clamp(min=1)
        return (torch.arange(tensor.shape[-1], device=tensor.device) < lengths).to(tensor.dtype)

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw a length for each row, in int64."""
        lengths = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
        return (torch.arange(shape[-1]) < lengths).long()


@dataclass(frozen=True, slots=True)
class Ascending(Domain):
    """Values of another domain, in ascending order along the last dimension, such as offsets of bags.

    >>> ascending(integers(0, 9)).mended(torch.tensor([5, 2, 11]))
    tensor([2, 2, 5])
    """

    of: Domain
    """The domain of the single values."""

    def __str__(self) -> str:
        return f"ascending({self.of})"

    @property
    def text(self) -> str:
        """The domain as an expression."""
        return f"ascending({self.of.text})"

    def mended(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mend the values, and sort them."""
        return self.of.mended(tensor).sort(-1).values

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw values, and sort them."""
        return self.of.drawn(shape, generator).sort(-1).values


between, integers, sums_to_one, right_padded, ascending = Interval, Integers, Probabilities, RightPadded, Ascending


def in_domain(domain: Domain, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if it is in a domain, and a near one of the domain otherwise.

    In the text of a program it declares the domain of an input. Raises ``InputError`` if the domain has no tensor of
    this dtype.

    >>> in_domain(between(0, 1), torch.tensor([-1.0, 0.5]))
    tensor([0.0000, 0.5000])
    """
    mended = tensor if _contains(domain, tensor) else domain.mended(tensor)
    if not _contains(domain, mended):
        raise InputError(f"{domain} has no tensor like this", value=shown(tensor))
    return mended


@dataclass(frozen=True, slots=True)
class InputDomain:
    """The declared domain of the arguments of a model."""

    tensors: Mapping[str, Domain] = field(default_factory=dict[str, Domain])
    """The domain of a tensor, by its place: ``[0]``, ``['mask']``, or ``[0]['ids']`` inside of an argument."""
    accepts: Callable[..., bool] | None = None
    """A function of the arguments of a call that returns whether they are in the domain, for relations of several."""

    @classmethod
    @checked(InputError)
    def of(cls, domain: Mapping[Any, Any], accepts: Callable[..., bool] | None = None) -> InputDomain:
        """Return the domain of a dict by positions and names, or by places as messages print them.

        Raises :class:`~pytest_fx.errors.InputError` for values that are no domains.
        """
        for key, value in domain.items():
            if not isinstance(value, Domain):
                raise InputError(
                    f"the domain of input {key!r} is no domain",
                    value=shown(value),
                    remedy="use between(0, 1), integers(0, 100), sums_to_one(), right_padded() or ascending(…)",
                )
        return cls({_place(key): value for key, value in domain.items()}, accepts)

    def violation(self, arguments: Arguments) -> str | None:
        """Return why ``arguments`` are outside of the domain, in words; None if they are inside."""
        tensors = places(arguments)
        for place, domain in self.tensors.items():
            if not _contains(domain, tensors[place]):
                return f"input{place} is not in {domain}"
        if self.accepts is not None and not self.accepts(*arguments.args, **arguments.kwargs):
            return "accepts= returns False for them"
        return None

    def require(self, arguments: Arguments, whose: str) -> None:
        """Raise ``InputError`` if the domain names a tensor that does not exist, or does not contain ``arguments``."""
        tensors = places(arguments)
        for place in self.tensors:
            if place not in tensors:
                raise InputError(
                    f"the domain of {whose} is for input{place}, which does not exist",
                    value=f"the inputs are {', '.join(f'input{each}' for each in tensors) or 'no tensors'}",
                    remedy="name a positional input by its number and a keyword input by its name",
                )
        if (why := self.violation(arguments)) is not None:
            raise InputError(
                f"the inputs of {whose} are outside of their own domain",
                why=why,
                remedy="declare a domain that has the examples, or give other examples",
            )

    def mended(self, arguments: Arguments) -> Arguments | None:
        """Return arguments of the domain near to ``arguments``; None if ``accepts`` refuses them."""
        domains = {
            id(tensor): self.tensors[place] for place, tensor in places(arguments).items() if place in self.tensors
        }

        def mend(tensor: torch.Tensor) -> torch.Tensor:
            domain = domains.get(id(tensor))
            return tensor if domain is None or _contains(domain, tensor) else domain.mended(tensor)

        mended = Arguments(map_tensors(mend, arguments.args), map_tensors(mend, arguments.kwargs))
        return mended if self.violation(mended) is None else None


def _contains(domain: Domain, tensor: torch.Tensor) -> bool:
    return not tensor.numel() or domain.contains(tensor)


def _place(key: Any) -> str:
    """Return the place of an argument by its position, name or place."""
    if isinstance(key, str):
        return key if key.startswith("[") else f"[{key!r}]"
    return f"[{key}]"


def _require_bounds(name: str, low: object, high: object, at_least: int) -> None:
    """Raise ``InputError`` unless the bounds are numbers with ``at_least`` between them."""
    if isinstance(low, Real) and isinstance(high, Real) and cast("float", high) - cast("float", low) >= at_least:
        return
    raise InputError(f"{name}({shown(low)}, {shown(high)}) contains no numbers", remedy="give the smaller bound first")
