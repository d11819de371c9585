"""One call of a program, and all that is to be seen of it: answer, inputs and state afterwards, shared memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fx import Interpreter
from fx.interpreter import positional
from fx.kept_tensors import KeptTensor
from pytest_fx.comparison.evaluation import Arguments, default_dtype
from pytest_fx.comparison.state import same_tensor, tensors_of
from pytest_fx.comparison.structure import leaves, map_tensors

SEED = 0
"""The random seed of every call."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one call of a program did."""

    answer: Any = None
    """What it returned."""
    inputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The tensors that it was given, as it left them, by their places in the arguments."""
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The parameters and buffers that it changed, as it left them."""
    rewritten: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Those that it wrote to, but with the values that they had."""
    shared: tuple[tuple[str, str], ...] = ()
    """Pairs of an output and an input, or of two outputs, that have memory in common."""
    error: Exception | None = None
    """What it raised, if it did not return."""


class Runner:
    """Calls a program again and again from the same state: what a call writes to parameters and buffers is undone."""

    def __init__(self, program: nn.Module, call: Callable[..., Any] | None = None) -> None:
        """Take ``program``, and what to call in its place, which uses its state."""
        self.program = program
        self._call = program if call is None else call
        self._state = {name: KeptTensor(tensor) for name, tensor in tensors_of(program).items()}

    def __call__(self, arguments: Arguments, dtype: torch.dtype) -> Run:
        """Call the program on copies of ``arguments``, without gradients, from a fixed random seed."""
        copies = arguments.copies()
        versions = {name: kept.tensor._version for name, kept in self._state.items()}
        try:
            with torch.no_grad(), default_dtype(dtype), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the program warns of, eager warns of, too
                torch.default_generator.manual_seed(SEED)
                answer = self._call(*copies.args, **copies.kwargs)
        except Exception as error:
            self.restore()
            return Run(error=error)
        inputs = places(copies)
        shared = _shared(answer, inputs)
        written = self._written()
        rewritten = {
            name: kept.tensor.detach().clone()
            for name, kept in self._state.items()
            if kept.tensor._version != versions[name] and name not in written
        }
        if written:
            with torch.no_grad():  # as were the views among them
                answer = map_tensors(torch.Tensor.clone, answer)
            written = {name: tensor.detach().clone() for name, tensor in written.items()}
            self.restore()
        return Run(answer, inputs, written, rewritten, shared)

    def restore(self) -> None:
        """Put the state back to what it was when this was made."""
        for name in self._written():
            self._state[name].put_back()

    def _written(self) -> dict[str, torch.Tensor]:
        """What no longer holds the values that it held, however it got others."""
        return {name: kept.tensor for name, kept in self._state.items() if not same_tensor(kept.tensor, kept.values)}


def by(interpreter: Interpreter) -> Callable[..., Any]:
    """Return a function that calls the program of ``interpreter`` by it."""
    return lambda *args, **kwargs: interpreter.run(*positional(interpreter.module, args, kwargs))


def places(arguments: Arguments) -> dict[str, torch.Tensor]:
    """Return the tensors among ``arguments`` by their places: ``[0]``, or ``['mask']`` where passed by name."""
    return {
        place: value
        for part in (arguments.args, arguments.kwargs)
        for place, value in leaves(part)
        if isinstance(value, torch.Tensor)
    }


def _shared(answer: Any, inputs: dict[str, torch.Tensor]) -> tuple[tuple[str, str], ...]:
    memory: dict[int, str] = {}
    for place, tensor in inputs.items():
        if tensor.numel():
            memory.setdefault(tensor.untyped_storage().data_ptr(), f"input{place}")
    pairs: list[tuple[str, str]] = []
    for path, leaf in leaves(answer):
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            first = memory.setdefault(leaf.untyped_storage().data_ptr(), f"output{path}")
            if first != f"output{path}":
                pairs.append((path, first))
    return tuple(pairs)
