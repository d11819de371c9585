"""One call of a program, and all that is to be seen of it: output, inputs and state afterwards, shared memory."""

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
from fx.passes.verification import find_violation_in
from fx.quantize.state import may_be_written
from pytest_fx.harness.evaluation import Arguments, default_dtype, places, same_random_numbers, threads
from pytest_fx.harness.snapshot import is_plain, is_strided, same_tensor, tensors_of
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves, map_tensors

_C: Any = torch._C
FEW_ELEMENTS = 2**16
"""Elements of a parameter or buffer up to which its values are looked at after a call, whether torch counts a write to
it or not."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one call of a program did."""

    output: Any = None
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
    draws: bool = False
    """Whether it drew random numbers."""

    @property
    def writes(self) -> bool:
        """Return whether it wrote to parameters or buffers."""
        return bool(self.state or self.rewritten)


class Runner:
    """Calls a program again and again from the same state: what a call writes to parameters and buffers is undone."""

    def __init__(
        self,
        program: nn.Module,
        call: Callable[..., Any] | None = None,
        *,
        kept: Mapping[int, KeptTensor] | None = None,
        thread_count: int | None = None,
    ) -> None:
        """Take ``program``.

        Args:
            program: whose state is put back.
            call: what to call in its place, which uses its state.
            kept: tensors that others keep already, by identity.
            thread_count: how many PyTorch computes with; None for as many as it does.
        """
        self.program = program
        self.call = program if call is None else call
        """What is called."""
        self._threads = thread_count
        known = kept or {}
        held = tensors_of(program)
        new = {id(tensor) for tensor in held.values() if id(tensor) not in known}
        # To know what is written to takes an analysis of the program: only where that may save a large copy.
        if any(tensor.numel() > FEW_ELEMENTS and id(tensor) in new for tensor in held.values()):
            new = _worth_a_copy(program, held)
        stored = StoredTensors()
        for name, tensor in held.items():
            if id(tensor) in new:
                stored[name] = tensor
        self._state = {
            name: known.get(id(tensor)) or KeptTensor(tensor, partial(stored.__getitem__, name))
            for name, tensor in held.items()
            if id(tensor) in known or id(tensor) in new
        }

    def __call__(self, arguments: Arguments, dtype: torch.dtype) -> Run:
        """Call the program on copies of ``arguments``, without gradients, from a fixed random seed."""
        return self.in_a_row([arguments], dtype)[0]

    def in_a_row(self, calls: Sequence[Arguments], dtype: torch.dtype) -> list[Run]:
        """Call the program on copies of each of ``calls``, and put the state back only after the last.

        Later calls get other contents in the very same tensors where these fit: a program that looks its output up by
        their addresses, identities or versions gives an earlier one.
        """
        runs: list[Run] = []
        copies: Arguments | None = None
        try:
            for number, arguments in enumerate(calls, start=1):
                if copies is None or not _fill(copies, arguments):
                    copies = arguments.copies()
                runs.append(self._run(copies, dtype, is_last=number == len(calls)))
        finally:
            self.restore()
        return runs

    def _run(self, copies: Arguments, dtype: torch.dtype, *, is_last: bool) -> Run:
        versions = {name: kept.tensor._version for name, kept in self._state.items()}
        try:
            output, draws = self._output(copies, dtype)
            snapshot = map_tensors(_snapshot, output)  # at once: another thread may still write to the output
        except Exception as error:
            return Run(error=error)
        inputs = places(copies)
        shared = _shared(output, inputs)
        written = self.written()
        rewritten = {
            name: kept.tensor.detach().clone()
            for name, kept in self._state.items()
            if kept.tensor._version != versions[name] and name not in written
        }
        written = {name: tensor.detach().clone() for name, tensor in written.items()}
        if not is_last:  # the tensors are filled again
            inputs = {place: tensor.detach().clone() for place, tensor in inputs.items()}
        return Run(snapshot, inputs, written, rewritten, shared, draws=draws)

    def _output(self, copies: Arguments, dtype: torch.dtype) -> tuple[Any, bool]:
        """Return the output, and whether random numbers were drawn."""
        with (
            torch.no_grad(),
            default_dtype(dtype),
            same_random_numbers(copies) as has_drawn,
            threads(self._threads),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # what the program warns of, eager warns of, too
            return self.call(*copies.args, **copies.kwargs), has_drawn()

    def restore(self) -> None:
        """Put the state back to what it was when this was made."""
        for name in self.written():
            self._state[name].put_back()

    def written(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers that no longer hold the values that they held."""
        return {
            name: kept.tensor
            for name, kept in self._state.items()
            if (kept.written or kept.tensor.numel() <= FEW_ELEMENTS)
            and not same_tensor(kept.tensor, kept.values.to(kept.tensor.dtype))
        }


_as_subclass = cast("Any", torch.Tensor).as_subclass


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor of its own, whose class has no say in comparisons.

    It is not a view for autograd, which refuses one of a parameter that is written to later.
    """
    if not is_plain(tensor):
        return tensor
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        with torch._C.DisableTorchFunctionSubclass():
            tensor = _as_subclass(tensor, torch.Tensor)
    return tensor.detach()


def _snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a tensor has now, as a plain one; a tensor whose class computes its values, as it is."""
    tensor = _plain(tensor)
    if not is_plain(tensor):
        return tensor
    with torch.no_grad():  # as was the view that it may be
        return tensor.clone()


def _fill(copies: Arguments, contents: Arguments) -> bool:
    """Write ``contents`` into the tensors of ``copies``, which keep their versions; False where they do not fit."""
    if copies.form != contents.form or not all(map(is_strided, copies.tensors)):
        return False
    for copied, content in zip(copies.tensors, contents.tensors, strict=True):
        copied.data.copy_(content)
    return bool(copies.tensors)


def _worth_a_copy(program: nn.Module, held: Mapping[str, torch.Tensor]) -> set[int]:
    """The tensors of a program to keep copies of, by identity: not the large ones that it never writes to."""
    if not isinstance(program, GraphModule) or find_violation_in(program) is not None:
        return set(map(id, held.values()))
    few = {id(tensor) for tensor in held.values() if tensor.numel() <= FEW_ELEMENTS}
    return few | set(map(id, may_be_written(program)))


def by(interpreter: Interpreter) -> Callable[..., Any]:
    """Return a function that calls the program of ``interpreter`` by it."""
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
    """Return where the memory of a tensor starts; None for one without elements or without memory of its own."""
    return None if not is_strided(tensor) or not tensor.numel() else tensor.untyped_storage().data_ptr() or None


def layout_notes(expected: Any, actual: Any) -> list[str]:
    """Return a sentence for each output that lies in memory otherwise than in eager.

    Contracts promise values. This is worth a line because what works on one layout, ``x.view(-1)`` say, may raise on
    another.
    """
    notes = list[str]()
    for (place, wanted), (_, found) in zip(leaves(expected), leaves(actual), strict=False):
        if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
            classes = stride_class(wanted), stride_class(found)
            if classes[0] != classes[1]:
                notes.append(f"output{place} is {classes[0]} in eager and {classes[1]} in the program")
    return notes


def stride_class(tensor: torch.Tensor) -> str:
    """Return how the elements of a tensor lie in memory: contiguous, channels last, or neither.

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
    """Change every bit pattern that ``runs`` hold inside the block, in place, and change it back afterwards.

    A program finds the tensors among all live objects, but no output in them. Memory that somebody else holds as well,
    a parameter that eager returns say, stays as it is.
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
    """Return the memory of the tensors of ``runs`` that nothing else has."""
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
        # One more for the object that stands for the memory in Python; what torch did not allocate is somebody else's.
        if _C._storage_Use_Count(number) == holders[number] + 1 and storage.resizable() and storage.nbytes()
    ]
