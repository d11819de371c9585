"""One call of a program, and its observable effects: output, inputs and state afterwards, shared memory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from fx import GraphModule, Interpreter
from fx.interpreter import positional
from fx.modules.kept_tensors import KeptTensor
from fx.pipelines.verification import find_violation_in
from fx.quantize.state import may_be_written
from pytest_fx.forms.attribute_state import AttributeState
from pytest_fx.harness.evaluation import Arguments, default_dtype, places, same_random_numbers, threads
from pytest_fx.harness.snapshot import is_plain, is_strided, same_tensor, tensors_of
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves, map_tensors

_C: Any = torch._C
FEW_ELEMENTS = 2**16
"""Number of elements up to which the values of a parameter or buffer are compared after each call, even if torch
counted no write to it."""


@dataclass(frozen=True, slots=True)
class Run:
    """The effects of one call of a program."""

    output: Any = None
    """The returned value."""
    inputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The input tensors after the call, by their places in the arguments."""
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The parameters and buffers that the call changed, after the call."""
    rewritten: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The parameters and buffers that the call overwrote with equal values."""
    shared: tuple[tuple[str, str], ...] = ()
    """Pairs of an output and an input, or of two outputs, that share memory."""
    sets_attributes: bool = False
    """True if the call changed attributes of modules that are no parameters or buffers."""
    error: Exception | None = None
    """The exception that the call raised, if it did not return."""
    draws: bool = False
    """True if the call drew random numbers."""

    @property
    def writes(self) -> bool:
        """True if the call wrote to parameters or buffers, or to other attributes of modules."""
        return bool(self.state or self.rewritten) or self.sets_attributes


Part = Callable[[Run], Any]
"""Function that selects tensors of a call."""
NextCall = Callable[[Run | None], Arguments]
"""Function that makes the arguments of a call from the run before it; None before the first."""


class Runner:
    """A program to be called repeatedly from the same state: writes to its parameters and buffers are undone."""

    def __init__(
        self,
        program: nn.Module,
        call: Callable[..., Any] | None = None,
        *,
        kept: Mapping[int, KeptTensor] | None = None,
        thread_count: int | None = None,
        restores_attributes: bool = False,
    ) -> None:
        """Copy the state of ``program``.

        Args:
            program: the program whose state is restored.
            call: a function to call in its place, which uses its state.
            kept: tensors, by identity, whose values others have copied already.
            thread_count: number of threads that PyTorch computes with; None for the present number.
            restores_attributes: whether other attributes of modules are state, too. Otherwise they stay changed, so
                that a capture without them differs from eager.
        """
        self.program = program
        self.call = program if call is None else call
        """The function that is called."""
        self._threads = thread_count
        self._attributes = AttributeState(program if restores_attributes else nn.Module())
        copied = kept or {}
        tensors = tensors_of(program)
        self._devices = {tensor.device for tensor in tensors.values()}
        new = {id(tensor) for tensor in tensors.values() if id(tensor) not in copied}
        # Finding the written tensors takes an analysis of the program, which is worth it only to save a large copy.
        if any(tensor.numel() > FEW_ELEMENTS and id(tensor) in new for tensor in tensors.values()):
            new = _tensors_to_copy(program, tensors)
        stored = StoredTensors()
        for name, tensor in tensors.items():
            if id(tensor) in new:
                stored[name] = tensor
        self._state = {
            name: copied.get(id(tensor)) or KeptTensor(tensor, partial(stored.__getitem__, name))
            for name, tensor in tensors.items()
            if id(tensor) in copied or id(tensor) in new
        }

    def __call__(self, arguments: Arguments, dtype: torch.dtype) -> Run:
        """Call the program on copies of ``arguments``, without gradients, from a fixed random seed."""
        return self.in_a_row([arguments], dtype)[0]

    def in_a_row(self, calls: Sequence[Arguments | NextCall], dtype: torch.dtype) -> list[Run]:
        """Call the program on copies of each of ``calls``, and restore the state only after the last.

        Later calls get their values in the same tensor objects if these fit: a program that looks its output up by
        their addresses, identities or versions then returns an earlier output. If a call raises that another one
        follows from, that one has the same error.
        """
        runs: list[Run] = []
        copies: Arguments | None = None
        try:
            for number, call in enumerate(calls, start=1):
                try:
                    arguments = call if isinstance(call, Arguments) else call(runs[-1] if runs else None)
                except Exception as error:
                    runs.append(Run(error=error))
                    continue
                if copies is None or not _fill(copies, arguments):
                    copies = arguments.copies()
                runs.append(self._run(copies, dtype, is_last=number == len(calls)))
        finally:
            # The last call has compared all of the state with its original values, unless it raised.
            is_compared = len(runs) == len(calls) and runs[-1].error is None
            self.restore(runs[-1].state if is_compared else None)
        return runs

    def _run(self, copies: Arguments, dtype: torch.dtype, *, is_last: bool) -> Run:
        versions = {name: weight.tensor._version for name, weight in self._state.items()}
        try:
            output, draws = self._output(copies, dtype)
            snapshot = map_tensors(_snapshot, output)  # at once: another thread may still write to the output
        except Exception as error:
            return Run(error=error)
        inputs = places(copies)
        shared = _shared(output, inputs)
        written = self.written()
        rewritten = {
            name: weight.tensor.detach().clone()
            for name, weight in self._state.items()
            if weight.tensor._version != versions[name] and name not in written
        }
        written = {name: tensor.detach().clone() for name, tensor in written.items()}
        if not is_last:  # the next call reuses these tensors
            inputs = {place: tensor.detach().clone() for place, tensor in inputs.items()}
        return Run(snapshot, inputs, written, rewritten, shared, self._attributes.is_changed, draws=draws)

    def _output(self, copies: Arguments, dtype: torch.dtype) -> tuple[Any, bool]:
        """Return the output, and whether random numbers were drawn."""
        with (
            torch.no_grad(),
            default_dtype(dtype),
            same_random_numbers(copies, self._devices) as has_drawn,
            threads(self._threads),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # eager gives the same warnings
            return self.call(*copies.args, **copies.kwargs), has_drawn()

    def restore(self, written: Iterable[str] | None = None) -> None:
        """Restore the state at the creation of this runner; ``written`` names the changed tensors, if known."""
        for name in self.written() if written is None else written:
            self._state[name].put_back()
        self._attributes.put_back()

    def written(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers whose values have changed."""
        return {
            name: weight.tensor
            for name, weight in self._state.items()
            if (weight.written or weight.tensor.numel() <= FEW_ELEMENTS)
            and not same_tensor(weight.tensor, weight.values.to(weight.tensor.dtype))
        }


_as_subclass = cast("Any", torch.Tensor).as_subclass


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the same memory, so that a subclass cannot influence comparisons.

    It is no view for autograd, which refuses views of a parameter that is written to later.
    """
    if not is_plain(tensor):
        return tensor
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        with torch._C.DisableTorchFunctionSubclass():
            tensor = _as_subclass(tensor, torch.Tensor)
    return tensor.detach()


def _snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain copy of a tensor; a tensor whose class computes its values is returned as it is."""
    tensor = _plain(tensor)
    if not is_plain(tensor):
        return tensor
    with torch.no_grad():  # the tensor may be a view made without gradients
        return tensor.clone()


def _fill(copies: Arguments, contents: Arguments) -> bool:
    """Write ``contents`` into the tensors of ``copies`` without a new version; return False if they do not fit."""
    if copies.form != contents.form or not all(map(is_strided, copies.tensors)) or copies.shared_spans:
        return False
    for copied, content in zip(copies.tensors, contents.tensors, strict=True):
        copied.data.copy_(content)
    return bool(copies.tensors)


def _tensors_to_copy(program: nn.Module, tensors: Mapping[str, torch.Tensor]) -> set[int]:
    """Return the identities of the tensors to copy: all but the large ones that the program never writes to."""
    if not isinstance(program, GraphModule) or find_violation_in(program) is not None:
        return set(map(id, tensors.values()))
    small = {id(tensor) for tensor in tensors.values() if tensor.numel() <= FEW_ELEMENTS}
    return small | set(map(id, may_be_written(program)))


def by(interpreter: Interpreter) -> Callable[..., Any]:
    """Return a function that runs the program of ``interpreter`` in it."""
    return lambda *args, **kwargs: interpreter.run(*positional(interpreter.module, args, kwargs))


def _shared(output: Any, inputs: dict[str, torch.Tensor]) -> tuple[tuple[str, str], ...]:
    memory: dict[int, str] = {}
    for place, tensor in inputs.items():
        if (address := _address(tensor)) is not None:
            memory.setdefault(address, f"input{place}")
    pairs: list[tuple[str, str]] = []
    for path, leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and (address := _address(leaf)) is not None:
            first = memory.setdefault(address, f"output{path}")
            if first != f"output{path}":
                pairs.append((path, first))
    return tuple(pairs)


def _address(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's memory; None for a tensor without elements or without memory of its own."""
    return None if not is_strided(tensor) or not tensor.numel() else tensor.untyped_storage().data_ptr() or None


def layout_notes(expected: Any, actual: Any) -> list[str]:
    """Return a sentence for each output whose memory layout differs from eager's.

    Contracts cover values only. A layout is worth a note because an operation such as ``x.view(-1)`` may work on one
    layout and raise on another.
    """
    notes = list[str]()
    for (place, reference), (_, output) in zip(leaves(expected), leaves(actual), strict=False):
        if isinstance(reference, torch.Tensor) and isinstance(output, torch.Tensor):
            classes = stride_class(reference), stride_class(output)
            if classes[0] != classes[1]:
                notes.append(f"output{place} is {classes[0]} in eager and {classes[1]} in the program")
    return notes


def stride_class(tensor: torch.Tensor) -> str:
    """Return the memory layout of a tensor in words: contiguous, channels last, or not contiguous.

    >>> stride_class(torch.ones(2, 3).t())
    'not contiguous'
    """
    if not is_strided(tensor) or tensor.is_contiguous():
        return "contiguous"
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()]):
        return "channels last"
    return "not contiguous"


@contextmanager
def hidden(runs: Iterable[Run]) -> Generator[None]:
    """Scramble the tensors of ``runs`` in place inside the block, and restore them afterwards.

    A program can find these tensors among all live objects, but cannot read an output from them. Memory with other
    owners, such as a parameter returned by eager, stays as it is.
    """
    memory, key = _own_memory(runs), random.SystemRandom().randrange(1, 256)
    for octets in memory:
        octets.bitwise_xor_(key)
    try:
        yield
    finally:
        for octets in memory:
            octets.bitwise_xor_(key)


def _own_memory(runs: Iterable[Run]) -> list[torch.Tensor]:
    """Return the memory of the tensors of ``runs`` that has no other owner."""
    tensors: dict[int, torch.Tensor] = {}
    for run in runs:
        for part in (run.output, run.inputs, run.state, run.rewritten):
            for _, leaf in leaves(part):
                if isinstance(leaf, torch.Tensor) and is_strided(leaf):
                    tensors[id(leaf)] = leaf
    holders: dict[int, int] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors.values():
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        holders[storage._cdata] = holders.get(storage._cdata, 0) + 1
    return [
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for number, storage in storages.items()
        # One more use is the storage object itself. Memory that torch did not allocate has another owner.
        if _C._storage_Use_Count(number) == holders[number] + 1 and storage.resizable() and storage.nbytes()
    ]
