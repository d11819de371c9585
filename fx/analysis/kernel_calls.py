"""The kernels that one run of a program calls, in order: their operands, and how far away these are in memory."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx.analysis.flop_formulas import tensors_in
from fx.analysis.kernel_costs import NO_WORK, KernelCost, Work, cost_of_kernel
from fx.argument_types import checked
from fx.container_kinds import leaves_of, map_parts
from fx.errors import AnalysisError, PassError
from fx.graph_module import GraphModule
from fx.higher_order import is_decided_by_values
from fx.modules.attributes import fetch_attribute
from fx.modules.storages import memory_of
from fx.naming.printing import describe
from fx.node import Node
from fx.passes.shape_prop import ShapeProp

_autograd: Any = torch.autograd
_ASKS_DEVICE = torch.ops.prim.device.default


class KernelMode(TorchDispatchMode):
    """A mode that intercepts each kernel call, including those in ``torch.cond`` branches, maps and loops."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, torch._ops.HigherOrderOperator):
            return self.call(func, args, kwargs or {})
        arguments: Any = pytree.tree_map(self._watched, (tuple(args), dict(kwargs or {})))
        return func(*arguments[0], **arguments[1])

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one kernel and return its result."""
        raise NotImplementedError

    def _watched(self, value: Any) -> Any:
        """Wrap a branch or body so that it runs in this mode; return any other argument unchanged."""
        if not callable(value) or isinstance(value, (type, torch.Tensor)):
            return value

        def part(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return part


class KernelRun(ShapeProp):
    """Shape propagation on fake tensors that reports each kernel call, however the program spells the operation.

    A module, a function, a method and an operator of an exported program all reach the same kernels, which are
    identified by their operators (``aten.addmm.default``). Nothing is computed and no state changes. As in
    :class:`~fx.passes.shape_prop.ShapeProp`, ``meta["tensor_meta"]`` is written. An analysis is a subclass that
    implements :meth:`record`.
    """

    def __init__(self, gm: GraphModule, *, backward: bool = False) -> None:
        """Prepare a run of a program; ``backward`` adds the gradients of the sum of all floating-point outputs."""
        super().__init__(gm, fake=True)
        self.node: Node | None = None
        """The node whose forward or gradient runs; None for kernels of no node, such as the sum of the outputs."""
        self.is_backward = False
        """True while gradients are computed."""
        self.is_inside = False
        """True while a node runs; False while values are freed between nodes."""
        self.does_backward = backward
        self._is_fetching = False
        self._started: list[int] = []
        self._nodes: list[Node] = []

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record one kernel call after it has run: its operator, arguments, keyword arguments and result."""
        raise NotImplementedError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and backward if requested; return the outputs."""
        self._started, self._nodes = [], []
        self.is_backward, self.node = False, None
        with torch.set_grad_enabled(self.does_backward), _Reports(self):
            result = super().run(*args, **kwargs)
            self.env = {}
            self.node = None
            if self.does_backward:
                self._run_backward(result)
        return result

    def run_node(self, n: Node) -> Any:
        """Run one node, and remember the number of the first autograd node that it records."""
        if is_decided_by_values(n.target):
            raise AnalysisError(
                f"the kernels that {n.target.__name__} calls are not known without a run",
                where=n.source,
                value=describe(n),
                why="values and sizes decide how many times it calls each of its parts",
                remedy="analyze its parts, which are programs themselves",
            )
        self.node, self.is_inside = n, True
        if self.does_backward:
            self._started.append(_autograd._get_sequence_nr())
            self._nodes.append(n)
        try:
            return super().run_node(n)
        finally:
            self.is_inside = False

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute as a fake tensor; kernels that create the fake tensor are not recorded."""
        self._is_fetching = True
        try:
            return super().fetch_attr(target)
        finally:
            self._is_fetching = False

    def _run_backward(self, result: Any) -> None:
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            raise PassError(
                "no output of the program depends on anything that requires a gradient",
                remedy="leave out backward=True, or let parameters or an input require gradients",
            )
        self.is_backward = True
        try:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        finally:
            self.is_backward, self.node = False, None

    def _find_forward_node(self) -> None:
        """Set ``node`` to the node whose gradient runs; autograd numbers its own nodes in forward order."""
        current: Any = torch._C._current_autograd_node()
        if current is None:
            return
        number = current._sequence_nr()
        if number < 2**63:  # accumulating a gradient has no number, and belongs to the node that computed the gradient
            place = bisect.bisect_right(self._started, number) - 1
            self.node = self._nodes[place] if place >= 0 else None


class _Reports(KernelMode):
    """A mode that passes each kernel call on to a run."""

    def __init__(self, run: KernelRun) -> None:
        super().__init__()
        self._run = run

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, run = func(*args, **kwargs), self._run
        if func is not _ASKS_DEVICE and not run._is_fetching:
            if run.is_backward:
                run._find_forward_node()
            run.record(func, args, kwargs, result)
        return result


def tensors_held(program: GraphModule, node: Node) -> list[torch.Tensor]:
    """Return the parameters and buffers of the module that a node calls, or the tensor that it fetches."""
    if node.op == "call_module":
        module = program.get_submodule(str(node.target))
        return [*module.parameters(), *module.buffers()]
    value = fetch_attribute(program, str(node.target)) if node.op == "get_attr" else None
    return [value] if isinstance(value, torch.Tensor) else []


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel takes or returns, without its elements."""

    shape: tuple[int, ...]
    """Size of each dimension."""
    stride: tuple[int, ...]
    """Elements to skip in memory for one step in each dimension; empty if the layout has no strides."""
    dtype: torch.dtype
    """Type of its elements."""
    is_state: bool
    """Whether it is a parameter or a buffer of the program, or a view of one."""

    @property
    def size(self) -> int:
        """Its bytes in memory; the repetitions of an expanded tensor are not counted."""
        elements = 1
        for length, stride in zip(self.shape, self.stride or (1,) * len(self.shape), strict=True):
            elements *= length if stride or not length else 1
        return elements * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        stride = "" if self.stride == make_contiguous_strides_for(self.shape) else f"/{','.join(map(str, self.stride))}"
        return f"{dtype}[{','.join(map(str, self.shape))}{stride}]{'!' if self.is_state else ''}"


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes that a kernel reads or writes."""

    size: int
    """The number of bytes."""
    distance: int
    """The reuse distance: bytes that the program touched since it last touched these. A cache larger than the distance
    still holds them. For bytes that a run touches once, the distance is the traffic of the whole run."""
    is_new: bool = False
    """Whether the kernel allocates them."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """One call of a kernel."""

    func: Any
    """The operator."""
    args: tuple[Any, ...]
    """Its arguments, with an :class:`Operand` in place of each tensor."""
    kwargs: Mapping[str, Any]
    """Its keyword arguments, likewise."""
    made: tuple[Operand, ...]
    """The tensors that it returns."""
    node: Node | None
    """The node whose forward or gradient calls it."""
    is_backward: bool
    """Whether the backward run calls it."""
    cost: KernelCost | None
    """Its operations and traffic; None if it only makes a view or queries a size."""
    touched: tuple[Touched, ...]
    """The bytes that it reads and writes, one entry per storage."""

    @property
    def work(self) -> Work:
        """Its operations and traffic; zero if it only makes a view."""
        return NO_WORK if self.cost is None else self.cost.work

    @property
    def name(self) -> str:
        """The operator without its overload, such as ``aten.addmm``."""
        return str(self.func).rpartition(".")[0] or str(self.func)

    @property
    def given(self) -> tuple[Operand, ...]:
        """The tensors among its arguments."""
        return tuple(operands_in((self.args, self.kwargs)))

    @property
    def key(self) -> str:
        """A text that calls with equal run times share: operator, sizes, strides, dtypes and other arguments.

        Parameters are marked with ``!``: they may be farther away in memory than freshly computed values.
        """
        named = [f"{name}={_spelled(value)}" for name, value in self.kwargs.items()]
        return f"{self.func}({', '.join([*map(_spelled, self.args), *named])})"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramCalls:
    """The kernels that one run of a program calls."""

    program: GraphModule
    """The program."""
    calls: tuple[KernelCall, ...]
    """The calls in order, forward before backward."""
    inputs: tuple[Operand, ...]
    """The tensors that the program takes."""
    outputs: tuple[Operand, ...]
    """The tensors that it returns."""

    @property
    def traffic(self) -> int:
        """Bytes that kernels read and write in the whole run."""
        return sum(touched.size for call in self.calls for touched in call.touched)

    def by_node(self) -> dict[Node | None, list[KernelCall]]:
        """Return the calls of each node, forward and backward."""
        calls: dict[Node | None, list[KernelCall]] = {}
        for call in self.calls:
            calls.setdefault(call.node, []).append(call)
        return calls


@checked(PassError)
def record_calls(gm: GraphModule, *args: Any, backward: bool = False) -> ProgramCalls:
    """Record the kernels that a program would call, without running it.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        args: its inputs, real or fake; only their shapes, strides and dtypes matter.
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
    recorder = _Recorder(gm, backward=backward)
    result = recorder.propagate(*args)
    outputs = tuple(_operand(tensor, frozenset()) for tensor in tensors_in(result))
    inputs = tuple(_operand(tensor, frozenset()) for tensor in tensors_in(args))
    return ProgramCalls(gm, tuple(recorder.finished()), inputs, outputs)


class _Recorder(KernelRun):
    """A run that records its kernel calls."""

    def __init__(self, graph_module: GraphModule, *, backward: bool) -> None:
        super().__init__(graph_module, backward=backward)
        self.recorded: list[tuple[KernelCall, list[tuple[int, int, bool]]]] = []
        """Each call with its touched storages: number, bytes, and whether the storage existed before the call."""
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._states: frozenset[int] = frozenset()
        self._state_count = -1

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        cost = cost_of_kernel(func, args, kwargs, result)
        states = self._state_storages()
        spell = functools.partial(_operand, states=states)
        arguments = _replaced(tuple(args), spell), _replaced(dict(kwargs), spell)
        results = tuple(map(spell, tensors_in(result)))
        storages = [] if cost is None else self._touched((args, kwargs), result, cost.work)
        self.recorded.append((KernelCall(func, *arguments, results, self.node, self.is_backward, cost, ()), storages))

    def _state_storages(self) -> frozenset[int]:
        """Return the addresses of the storages of all parameters and buffers fetched so far."""
        if len(self._copied) != self._state_count:
            tensors = [value for value in self._copied.values() if isinstance(value, torch.Tensor)]
            self._states = frozenset(memory_of(tensor) for tensor in tensors)
            self._state_count = len(self._copied)
        return self._states

    def _touched(self, operands: Any, result: Any, work: Work) -> list[tuple[int, int, bool]]:
        touched: dict[int, tuple[int, bool]] = {}
        for tensors, is_read in ((tensors_in(operands), True), (tensors_in(result), False)):
            for tensor in tensors:
                number, was_there = self._number(tensor)
                size = min(_operand(tensor, frozenset()).size, work.read if is_read else work.written)
                before, old = touched.get(number, (0, was_there or is_read))
                touched[number] = (size if is_read else before + size), old
        return [(number, size, old) for number, (size, old) in touched.items() if size]

    def _number(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """Return the number of a tensor's storage, and whether it was numbered before.

        Storages are kept alive so that their addresses stay unique.
        """
        address = memory_of(tensor)
        if address in self._numbers:
            return self._numbers[address], True
        self._kept.append(tensor.untyped_storage() if tensor.layout is torch.strided else tensor)
        self._numbers[address] = len(self._numbers)
        return self._numbers[address], False

    def finished(self) -> list[KernelCall]:
        """Return the calls, with the reuse distances of their operands when the program runs repeatedly."""
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
                touched.append(Touched(size, distance, not was_there))
            for number, size, _ in storages:
                now += size
                last[number] = now
            calls.append(replace(call, touched=tuple(touched)))
        return calls


def operands_in(values: Any) -> list[Operand]:
    """Return the operands in arguments, in any containers."""
    return [value for value in leaves_of(values) if isinstance(value, Operand)]


def _replaced(value: Any, spell: Any) -> Any:
    return spell(value) if isinstance(value, torch.Tensor) else map_parts(lambda part: _replaced(part, spell), value)


def _operand(tensor: torch.Tensor, states: frozenset[int]) -> Operand:
    strided = tensor.layout is torch.strided
    stride = tuple(map(int, tensor.stride())) if strided else ()
    return Operand(tuple(map(int, tensor.shape)), stride, tensor.dtype, strided and memory_of(tensor) in states)


def _spelled(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_spelled, value))}]"
    return str(value)
