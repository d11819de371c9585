"""The kernels that one run of a program calls, in order, with what each is given, from which distance in memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx.analysis.kernel_costs import NO_WORK, KernelCost, Work, cost_of_kernel
from fx.analysis.kernel_rules import tensors_in
from fx.analysis.kernel_run import KernelRun
from fx.container_kinds import leaves_of, map_parts
from fx.graph_module import GraphModule, expect_program
from fx.modules.storages import memory_of
from fx.node import Node


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel is given or returns, without its elements."""

    shape: tuple[int, ...]
    """Size of each dimension."""
    stride: tuple[int, ...]
    """Elements to skip in memory for one step in each dimension; empty where it has none."""
    dtype: torch.dtype
    """Type of its elements."""
    is_state: bool
    """Whether it is a parameter or a buffer of the program, or a view of one."""

    @property
    def size(self) -> int:
        """Its bytes in memory: of an expanded tensor not each repetition."""
        elements = 1
        for length, stride in zip(self.shape, self.stride or (1,) * len(self.shape), strict=True):
            elements *= length if stride or not length else 1
        return elements * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        stride = "" if self.stride == _contiguous(self.shape) else f"/{','.join(map(str, self.stride))}"
        return f"{dtype}[{','.join(map(str, self.shape))}{stride}]{'!' if self.is_state else ''}"


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes that a kernel reads or writes."""

    size: int
    """How many."""
    distance: int
    """How many other bytes the program has touched since it touched these: what is nearer than the size of a cache is
    found there. Of what a program touches once in a run, the bytes that it touches in the whole run."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """One call of a kernel."""

    func: Any
    """The operator."""
    args: tuple[Any, ...]
    """Its arguments, with an :class:`Operand` in the place of each tensor."""
    kwargs: Mapping[str, Any]
    """Its keyword arguments, likewise."""
    made: tuple[Operand, ...]
    """What it returns."""
    node: Node | None
    """The node that calls it, or whose gradient does."""
    is_backward: bool
    """Whether the backward run calls it."""
    cost: KernelCost | None
    """Its operations and traffic; None where it only makes a view, or asks for a size."""
    touched: tuple[Touched, ...]
    """What it reads and writes, tensor by tensor; each storage once."""

    @property
    def work(self) -> Work:
        """Its operations and traffic; none where it only makes a view."""
        return NO_WORK if self.cost is None else self.cost.work

    @property
    def name(self) -> str:
        """The operator without its overload, as ``aten.addmm``."""
        return str(self.func).rpartition(".")[0] or str(self.func)

    @property
    def given(self) -> tuple[Operand, ...]:
        """The tensors among its arguments."""
        return tuple(operands_in((self.args, self.kwargs)))

    @property
    def key(self) -> str:
        """Return what tells calls apart that may take another time: operator, sizes, strides, dtypes, other arguments.

        Operands that are parameters are marked: they may lie farther away than what has just been computed.
        """
        named = [f"{name}={_spelled(value)}" for name, value in self.kwargs.items()]
        return f"{self.func}({', '.join([*map(_spelled, self.args), *named])})"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramCalls:
    """The kernels that one run of a program calls."""

    program: GraphModule
    """The program."""
    calls: tuple[KernelCall, ...]
    """Forward and then backward, in order."""
    inputs: tuple[Operand, ...]
    """The tensors that the program takes."""
    outputs: tuple[Operand, ...]
    """The tensors that it returns."""

    @property
    def traffic(self) -> int:
        """Bytes that kernels read and write in the whole run."""
        return sum(touched.size for call in self.calls for touched in call.touched)

    def by_node(self) -> dict[Node | None, list[KernelCall]]:
        """The calls of each node, forward and backward."""
        found: dict[Node | None, list[KernelCall]] = {}
        for call in self.calls:
            found.setdefault(call.node, []).append(call)
        return found


def record_calls(gm: GraphModule, *args: Any, backward: bool = False) -> ProgramCalls:
    """Record the kernels that a program would call, without running it.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        args: its inputs, real or fake; of them only shapes, strides and dtypes count.
        backward: also record the gradients of the sum of all outputs.

    Raises:
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Linear(100, 10))
    >>> [call.key for call in record_calls(program, torch.ones(8, 100)).calls]  # doctest: +NORMALIZE_WHITESPACE
    ['aten.t.default(float32[10,100]!)',
     'aten.addmm.default(float32[10]!, float32[8,100], float32[100,10/1,100]!)']
    """
    expect_program(gm, "record_calls looks at a GraphModule")
    recorder = _Recorder(gm, backward=backward)
    result = recorder.propagate(*args)
    outputs = tuple(_operand(tensor, frozenset()) for tensor in tensors_in(result))
    inputs = tuple(_operand(tensor, frozenset()) for tensor in tensors_in(args))
    return ProgramCalls(gm, tuple(recorder.finished()), inputs, outputs)


class _Recorder(KernelRun):
    """A run that keeps its calls."""

    def __init__(self, graph_module: GraphModule, *, backward: bool) -> None:
        super().__init__(graph_module, self.record, backward=backward)
        self.recorded: list[tuple[KernelCall, list[tuple[int, int, bool]]]] = []
        """Each call with what it touches: the number of the storage, bytes, and whether it was there before."""
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._states: frozenset[int] = frozenset()
        self._state_count = -1

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        cost = cost_of_kernel(func, args, kwargs, result)
        states = self._state_storages()
        spell = functools.partial(_operand, states=states)
        given = _replaced(tuple(args), spell), _replaced(dict(kwargs), spell)
        made = tuple(map(spell, tensors_in(result)))
        storages = [] if cost is None else self._touched((args, kwargs), result, cost.work)
        self.recorded.append((KernelCall(func, *given, made, self.node, self.is_backward, cost, ()), storages))

    def _state_storages(self) -> frozenset[int]:
        """The storages of parameters and buffers that were fetched so far."""
        if len(self._copied) != self._state_count:
            tensors = [value for value in self._copied.values() if isinstance(value, torch.Tensor)]
            self._states = frozenset(memory_of(tensor) for tensor in tensors)
            self._state_count = len(self._copied)
        return self._states

    def _touched(self, given: Any, result: Any, work: Work) -> list[tuple[int, int, bool]]:
        found: dict[int, tuple[int, bool]] = {}
        for tensors, is_read in ((tensors_in(given), True), (tensors_in(result), False)):
            for tensor in tensors:
                number, was_there = self._number(tensor)
                size = min(_operand(tensor, frozenset()).size, work.read if is_read else work.written)
                before, old = found.get(number, (0, was_there or is_read))
                found[number] = (size if is_read else before + size), old
        return [(number, size, old) for number, (size, old) in found.items() if size]

    def _number(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """The number of the storage of a tensor, and whether it was known. Storages are kept: addresses stay unique."""
        address = memory_of(tensor)
        if address in self._numbers:
            return self._numbers[address], True
        self._kept.append(tensor.untyped_storage() if tensor.layout is torch.strided else tensor)
        self._numbers[address] = len(self._numbers)
        return self._numbers[address], False

    def finished(self) -> list[KernelCall]:
        """The calls, each with how far away in memory its operands are when the program runs again and again."""
        self._kept.clear()
        traffic = sum(size for _, storages in self.recorded for _, size, _ in storages)
        last: dict[int, int] = {}
        calls: list[KernelCall] = []
        now = 0
        for call, storages in self.recorded:
            touched: list[Touched] = []
            for number, size, was_there in storages:
                is_new = number not in last
                distance = (traffic if was_there else size) if is_new else now - last[number] + size
                touched.append(Touched(size, distance))
            for number, size, _ in storages:
                now += size
                last[number] = now
            calls.append(replace(call, touched=tuple(touched)))
        return calls


def operands_in(values: Any) -> list[Operand]:
    """The operands in arguments, in any containers."""
    return [value for value in leaves_of(values) if isinstance(value, Operand)]


def _replaced(value: Any, spell: Any) -> Any:
    return spell(value) if isinstance(value, torch.Tensor) else map_parts(lambda part: _replaced(part, spell), value)


def _operand(tensor: torch.Tensor, states: frozenset[int]) -> Operand:
    strided = tensor.layout is torch.strided
    stride = tuple(map(int, tensor.stride())) if strided else ()
    return Operand(tuple(map(int, tensor.shape)), stride, tensor.dtype, strided and memory_of(tensor) in states)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = list[int](), 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _spelled(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_spelled, value))}]"
    return str(value)
