"""A model under test: copies of it to work on, inputs for it, and what it answers when it is left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fx.kept_tensors import KeptTensor

from .capture import GraphModule, capture, capture_without_leaves
from .evaluation import Arguments, converted, default_dtype
from .observation import Observation, observe
from .state import tensors_of
from .structure import leaves, map_tensors

ENOUGH_ELEMENTS = 256
"""Elements of an output over which an error is taken: the largest of few is a matter of luck."""
FEWEST_DRAWS = 2
"""Input sets that a model is called with at least: a program specialized to the values of one fails on another."""
MOST_DRAWS = 8
"""Input sets that a model is called with at most, however few elements it returns."""


class Subject:
    """A model under test. It is never handed out, run or changed itself: :meth:`fresh` makes copies.

    >>> from torch import nn
    >>> subject = Subject("linear", nn.Linear(2, 1), lambda draw: Arguments((torch.ones(3, 2),)))
    >>> subject.fresh().training, subject.fresh(torch.float64).weight.dtype
    (False, torch.float64)
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        inputs: Callable[[int], Arguments] | None,
        batch: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        working_dtype: torch.dtype | None = None,
        draws: int | None = None,
        other_inputs: Callable[[int], Arguments] | None = None,
    ) -> None:
        """Take a copy of ``module``.

        Args:
            name: what to call it.
            module: the model.
            inputs: makes the arguments of the n-th draw, the same ones whenever it is asked for the same n.
            batch: samples in them, where that can be chosen.
            threads: how many PyTorch answers with; None for as many as it has.
            device: where it runs.
            working_dtype: of its floating-point tensors; None for its own.
            draws: how many sets of inputs it is called with; None for as many as its outputs need.
            other_inputs: as ``inputs``, with another number of samples; None if it is not known how to make them.
        """
        self.name = name
        self.batch = batch
        self.threads = threads
        self.device = torch.device(device)
        self._module = copy.deepcopy(module).eval().to(self.device)
        if working_dtype is not None:
            in_dtype(self._module, working_dtype)
        self._inputs = inputs
        self._default_dtype = torch.get_default_dtype()
        self._observations: dict[torch.dtype, list[Observation]] = {}
        self._draws = draws
        self._lent: list[KeptTensor] = []
        self.findings: dict[Any, Any] = {}
        """What others found out about the model and keep with it, by keys of theirs."""
        self._other_inputs = other_inputs

    @property
    def has_inputs(self) -> bool:
        """Whether the model can be called at all: a factory need not give example inputs."""
        return self._inputs is not None

    @property
    def state_names(self) -> list[str]:
        """What the parameters and buffers are called that are saved with it."""
        return list(self._module.state_dict())

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its parameters and buffers by name: to be compared with, never to be changed."""
        return tensors_of(self._module)

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype: that of the first floating-point parameter, buffer or input."""
        inputs = self.arguments().tensors if self.has_inputs else []
        for tensor in (*self.tensors.values(), *inputs):
            if tensor.is_floating_point():
                return tensor.dtype
        return torch.get_default_dtype()

    def fresh(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy of the model in evaluation mode, its floating-point tensors in ``dtype`` if given."""
        if dtype is None or dtype == self.dtype:
            return copy.deepcopy(self._module)
        # Parameters are most of a model, and are not copied once more than it takes to convert them.
        made: dict[int, Any] = {
            id(one): nn.Parameter(converted(one.detach(), dtype), one.requires_grad)
            for one in self._module.parameters()
            if type(one) is nn.Parameter and converted(one.new_empty(0), dtype).dtype != one.dtype
        }
        return in_dtype(copy.deepcopy(self._module, made), dtype)

    def borrowed(self) -> nn.Module:
        """Return a new copy that shares its tensors with others: to be captured and called, never changed.

        What calls that are observed write to them is undone.
        """
        return copy.deepcopy(self._module, dict(self._tensors_to_lend))

    @cached_property
    def _tensors_to_lend(self) -> dict[int, torch.Tensor]:
        """A copy of each of its tensors, by the identity of that."""
        lent, own = tensors_of(self.fresh()), self.tensors
        self._lent += [KeptTensor(tensor, own[name]) for name, tensor in lent.items()]
        return {id(own[name]): tensor for name, tensor in lent.items()}

    def arguments(self, draw: int = 0) -> Arguments:
        """Return the arguments of a call, other values for each draw, or raise ``LookupError`` if there are none."""
        if self._inputs is None:
            raise LookupError(f"{self.name} has no example inputs: its factory should return (module, inputs)")
        with default_dtype(self._default_dtype):  # another one would draw other numbers
            return self._inputs(draw).map(lambda tensor: tensor.to(self.device))

    def capture(self, module: nn.Module | None = None, *, leaves: bool = True) -> GraphModule:
        """Return a new capture, of a fresh copy or of ``module``, for calls like those with the example inputs.

        With ``leaves`` false it is in functions only, and ``TraceError`` is raised where a module branches on values.
        """
        how = capture if leaves else capture_without_leaves
        return how(self.fresh() if module is None else module, self.arguments() if self.has_inputs else None)

    @property
    def draws(self) -> int:
        """How many input sets the model is called with."""
        return len(self.eager_observations(self.dtype))

    @property
    def wide_draws(self) -> int:
        """With how many of them it is called in float64, too: as many as give every output enough elements."""
        return min(self.draws, _draws_for(self.eager_observations(self.dtype)[0].answer))

    @cached_property
    def captured(self) -> GraphModule:
        """One capture of the model that is kept: to be read and called, never changed. See :meth:`capture`.

        What calls that are observed write to its parameters and buffers is undone.
        """
        program = self.capture(self.borrowed())
        known = {id(tensor) for tensor in self._tensors_to_lend.values()}
        self._lent += [KeptTensor(tensor) for tensor in tensors_of(program).values() if id(tensor) not in known]
        return program

    @cached_property
    def capture_error(self) -> Exception | None:
        """Why the model cannot be captured, if it cannot."""
        try:
            self.captured.graph  # noqa: B018 - found out by capturing
        except Exception as error:  # whatever the model's code raises when it is given traced values
            return error
        return None

    @cached_property
    def at_another_batch(self) -> Subject | None:
        """The model with another number of samples; None if there are no such inputs, or none that it accepts."""
        if self._other_inputs is None:
            return None
        other = copy.copy(self)  # which shares the model
        for found in ("captured", "capture_error"):
            vars(other).pop(found, None)
        other.name = f"{self.name} with {self._other_inputs(0).samples} sample(s)"
        other._inputs, other._other_inputs, other._draws = self._other_inputs, None, 1
        other._observations, other.findings, other._lent = {}, {}, list(self._lent)
        try:
            other.eager_answers(self.dtype)
        except Exception:  # whatever the model raises when it is given another number of samples
            return None
        return other

    def eager_observations(self, dtype: torch.dtype, draws: int | None = None) -> list[Observation]:
        """Return what is seen of the model in ``dtype`` in the first ``draws`` calls; None for all."""
        known = self._observations.get(dtype, [])
        count = None if dtype == self.dtype else self.draws if draws is None else min(draws, self.draws)
        if len(known) < (count or 1):
            with default_dtype(dtype):
                module = self.borrowed() if dtype == self.dtype else self.fresh(dtype)
            with self._put_back():  # after all calls, between which the module may keep something
                known = [self._observe(module, dtype, 0)]
                count = count or self._draws or max(FEWEST_DRAWS, _draws_for(known[0].answer))
                known += [self._observe(module, dtype, draw) for draw in range(1, count)]
            self._observations[dtype] = known
        return known[:draws]

    def observations_of(
        self, program: Callable[..., Any], dtype: torch.dtype, draws: Iterable[int]
    ) -> list[Observation]:
        """Return what is seen of ``program`` in ``dtype`` when it is called with the inputs of ``draws``."""
        with self._put_back():
            return [self._observe(program, dtype, draw) for draw in draws]

    def _observe(self, program: Callable[..., Any], dtype: torch.dtype, draw: int) -> Observation:
        seen = observe(program, self.arguments(draw), dtype, self.threads)
        if any(kept.written for kept in self._lent):  # the answer may lie in what the next call writes to
            seen = replace(seen, answer=map_tensors(lambda tensor: tensor.detach().clone(), seen.answer))
        return seen

    @contextmanager
    def _put_back(self) -> Generator[None]:
        try:
            yield
        finally:
            for kept in self._lent:
                if kept.written:
                    kept.put_back()

    def eager_answers(self, dtype: torch.dtype, draws: int | None = None) -> list[Any]:
        """Return what the model answers in ``dtype`` in the first ``draws`` calls; None for all."""
        return [seen.answer for seen in self.eager_observations(dtype, draws)]

    def answers_of(self, program: Callable[..., Any], dtype: torch.dtype) -> list[Any]:
        """Return what ``program`` answers in ``dtype``, one answer for each draw."""
        return [seen.answer for seen in self.observations_of(program, dtype, range(self.draws))]


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return ``module`` with its floating-point and complex tensors in ``dtype``; ``Module.to`` makes those real."""
    return module._apply(lambda tensor: converted(tensor, dtype))


def _draws_for(answer: Any) -> int:
    """Return how many draws give every floating-point output enough elements, within limits."""
    sizes = [leaf.numel() for _, leaf in leaves(answer) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    smallest = min((size for size in sizes if size), default=ENOUGH_ELEMENTS)
    return min(MOST_DRAWS, -(-ENOUGH_ELEMENTS // smallest))
