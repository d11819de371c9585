"""Input sets of a model: several examples, a function, shapes or a data loader, with the domain of their values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from fx.arguments import refusal, shown
from pytest_fx.errors import InputError
from pytest_fx.harness.domains import Domain, InputDomain
from pytest_fx.harness.evaluation import Arguments

MOST_BATCHES = 8
"""The most batches that are read from a data loader."""
_SOURCES = "give a list of (args, kwargs), a list of shapes, a function of a seed and a size, or a data loader"


class InputSets:
    """The inputs with which a model is called, and the domain of their values.

    A factory returns ``(module, InputSets(…))``. Wherever a model is accepted with example inputs, it is accepted with
    these, too.

    >>> from pytest_fx import between
    >>> sets = InputSets([(2, 3), (4, 3)], domain={0: between(0, 1)})
    >>> [tuple(sets.arguments(number)[0].shape) for number in (0, 1)]
    [(2, 3), (4, 3)]
    >>> pairs = InputSets([((torch.zeros(1),), {}), ((torch.ones(1),), {"scale": 2})])
    >>> pairs.count, pairs.arguments(1).kwargs
    (2, {'scale': 2})
    """

    def __init__(
        self,
        source: Any,
        *,
        domain: Mapping[int | str, Domain] | None = None,
        accepts: Callable[..., bool] | None = None,
        take: Callable[[Any], Any] | None = None,
    ) -> None:
        """Take the source of the inputs.

        Args:
            source: a list of pairs ``(args, kwargs)``, or a list of shapes. Or a function of a seed and a number of
                samples that returns inputs. Or an iterable of batches, such as a data loader. A shape is a tuple of
                sizes; several inputs have a tuple of shapes, or a dict by name.
            domain: the domain of a tensor by the position or name of the argument, or by its place (``"[0]['ids']"``).
                Inputs of which only the shape is given are drawn from it; without a domain, from a normal distribution.
            accepts: a function of the model's arguments that returns whether they are in the domain.
            take: a function that returns the inputs of a batch, for example ``lambda batch: batch[0]``.

        Raises:
            InputError: the source is none of these, or a domain is none.
        """
        self.domain = InputDomain.of(domain or {}, accepts)
        """The domain of all inputs."""
        self.draws = False
        """True if the inputs depend on a seed."""
        self.count: int | None = None
        """The number of input sets, if they are enumerated."""
        self._domains: Mapping[int | str, Domain] = domain or {}
        self._listed: list[Any] = []
        self._function: Callable[[int, int | None], Any] | None = None
        if isinstance(source, torch.Tensor | Mapping | str) or not (callable(source) or isinstance(source, Iterable)):
            what = "InputSets takes several inputs, or a source of them"
            raise refusal(what, source, error=InputError, remedy=_SOURCES)
        if callable(source) and not isinstance(source, Iterable):
            self._function, self.draws = source, True
        elif isinstance(source, Sequence) and all(map(_is_pair, source)) and len(source):
            self._listed = [Arguments(tuple(args), dict(kwargs)) for args, kwargs in source]
        elif isinstance(source, Sequence) and all(map(_is_shape, source)) and len(source):
            self._listed, self.draws = list(source), True
        else:
            batches = itertools.islice(cast("Iterable[Any]", source), MOST_BATCHES)
            self._listed = [as_arguments(batch if take is None else take(batch)) for batch in batches]
        if self._function is None:
            self.count = len(self._listed)
            if not self._listed:
                raise InputError("InputSets got no input set", value=shown(source), remedy=_SOURCES)

    def arguments(self, number: int, seed: int = 0, size: int | None = None) -> Arguments:
        """Return the input set ``number``; beyond the given ones, one derived from them that keeps to the domain.

        Args:
            number: the number of the input set, from 0 on.
            seed: the seed of drawn inputs.
            size: the number of samples, which only a function can choose; None for its own.

        Raises:
            InputError: no input of the domain can be derived.
        """
        if self._function is not None:
            return self._mended(as_arguments(self._function(seed + number, size)), number)
        entry = self._listed[number % len(self._listed)]
        if not isinstance(entry, Arguments):
            return self._mended(self._drawn(entry, seed + number), number)
        return entry if number < len(self._listed) else self._mended(entry.shrunk(seed=number), number)

    def _mended(self, arguments: Arguments, number: int) -> Arguments:
        if not number:  # an example outside of the domain is the caller's mistake, and reported as such
            return arguments
        mended = self.domain.mended(arguments)
        if mended is None:
            raise InputError(
                f"input set {number} is outside of the declared domain",
                why=self.domain.violation(arguments),
                remedy="give a source whose inputs are all in the domain",
            )
        return mended

    def examples(self, seed: int = 0) -> list[Arguments]:
        """Return the input sets as given: all that are enumerated, or else the first one."""
        return [self.arguments(number, seed) for number in range(self.count or 1)]

    def _drawn(self, shapes: Any, seed: int) -> Arguments:
        """Return tensors of the given shapes, drawn from their domains."""
        generator = torch.Generator().manual_seed(seed)

        def draw(key: int | str, shape: Any) -> torch.Tensor:
            domain = self._domains.get(key)
            return torch.randn(shape, generator=generator) if domain is None else domain.drawn(tuple(shape), generator)

        if isinstance(shapes, Mapping):
            return Arguments(kwargs={key: draw(key, shape) for key, shape in shapes.items()})
        several = [shapes] if all(isinstance(size, int) for size in shapes) else shapes
        return Arguments(tuple(draw(position, shape) for position, shape in enumerate(several)))


def as_arguments(inputs: Any) -> Arguments:
    """Return the arguments of a call: a tuple is positional, a dict is by keyword, anything else is the only one."""
    if isinstance(inputs, Arguments):
        return inputs
    if isinstance(inputs, tuple) and not hasattr(cast("object", inputs), "_fields"):
        return Arguments(args=cast("tuple[Any, ...]", inputs))
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in cast("dict[Any, Any]", inputs)):
        return Arguments(kwargs=cast("dict[str, Any]", inputs))
    return Arguments(args=(cast("object", inputs),))


def _is_pair(entry: Any) -> bool:
    """Return whether an entry is a pair of positional and keyword arguments."""
    return (
        isinstance(entry, tuple)
        and len(cast("tuple[Any, ...]", entry)) == 2
        and isinstance(entry[0], tuple)
        and isinstance(entry[1], dict)
    )


def _is_shape(entry: Any) -> bool:
    """Return whether an entry is a shape, or shapes of several inputs by position or name."""
    if isinstance(entry, Mapping):
        return bool(entry) and all(isinstance(key, str) and _is_sizes(shape) for key, shape in entry.items())
    return _is_sizes(entry) or (isinstance(entry, tuple) and bool(entry) and all(map(_is_sizes, entry)))


def _is_sizes(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
