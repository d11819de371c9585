"""Memory of the values of a program over time, and ways to lower its peak (paper, section 6.3)."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from fx.analysis.kernel_calls import KernelRun, tensors_held
from fx.analysis.live_storages import LiveStorages
from fx.argument_types import checked
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.naming.tables import in_bytes, table_lines
from fx.node import Node
from fx.operators.families import find_operator

_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """One storage that the program allocates, from its allocation until it is freed."""

    node: Node | None
    """The node whose forward, or gradient in the backward run, allocates it; None for the first gradient."""
    is_backward: bool
    """Whether the backward run allocates it."""
    nodes: tuple[Node, ...]
    """The nodes whose values are in it: a value, its views and in-place results; empty for scratch memory."""
    size: int
    """Bytes."""
    made: int
    """The time of its allocation: the index of this change of memory, counted from 0."""
    freed: int | None
    """The time at which it is freed, in the same count; None if it still exists at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class Saving:
    """One way to lower the peak."""

    node: Node | None
    """The node to compute in place or to recompute; None for a storage that no node allocated."""
    size: int
    """Bytes saved: those of the node's value."""
    peak: int
    """The peak in bytes with this change alone."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReport:
    """Memory of one run of a program. Sizes are bytes; inputs, parameters and buffers are counted separately."""

    peak: int
    """The most that values take at a time; each is freed after its last use, as in generated code."""
    peak_node: Node | None
    """The node whose forward or gradient runs at the peak."""
    peak_is_backward: bool
    """Whether the peak is in the backward run."""
    without_freeing: int
    """The most that the forward run would take if it kept every value until its end."""
    left: int
    """The memory at the end: outputs, and gradients after a backward run."""
    inputs: int
    """The inputs, which belong to the caller."""
    state: int
    """Parameters and buffers that the program uses; each counts once."""
    storages: tuple[Storage, ...]
    """All storages, in order of allocation."""
    live: tuple[int, ...]
    """Bytes in use after each change: the curve of memory over time."""
    in_place: tuple[Saving, ...]
    """Operations that could write over an input that is not needed afterwards; greatest gain first."""
    peak_in_place: int
    """The peak if all of them did."""
    recompute: tuple[Saving, ...]
    """Values that are unused at the peak, and that one operation can recompute from live values when they are needed;
    products, convolutions and attention are excluded. Greatest gain first."""
    recomputed: tuple[Saving, ...]
    """A compatible subset of ``recompute``: none is computed from another one."""
    peak_recompute: int
    """The peak if all of ``recomputed`` were recomputed."""

    @property
    def at_peak(self) -> tuple[Storage, ...]:
        """The storages in use at the peak, greatest first."""
        if not self.live:
            return ()
        moment = self.live.index(self.peak)
        present = [
            storage
            for storage in self.storages
            if storage.made <= moment and (storage.freed is None or storage.freed > moment)
        ]
        return tuple(sorted(present, key=lambda storage: -storage.size))

    def __str__(self) -> str:
        where = _named(self.peak_node, self.peak_is_backward)
        lines = [
            f"peak of activations {in_bytes(self.peak)}, at {where}",
            f"  forward without freeing {in_bytes(self.without_freeing)}; left at the end {in_bytes(self.left)}",
            f"  beside inputs {in_bytes(self.inputs)}, parameters and buffers {in_bytes(self.state)}",
            f"  with every possible operation in place {in_bytes(self.peak_in_place)}",
        ]
        if self.peak_node is not None and self.peak_node.source is not None:
            lines.insert(1, f"  where {self.peak_node.source}")
        greatest = self.at_peak[:_SHOWN]
        lines += [
            "",
            *table_lines(["at the peak", "bytes"], [[_names(storage), in_bytes(storage.size)] for storage in greatest]),
        ]
        gains = [("in place", saving) for saving in self.in_place if saving.peak < self.peak]
        gains += [("computed again", saving) for saving in self.recompute if saving.peak < self.peak]
        if gains:
            rows = [[how, _named(saving.node, False), in_bytes(saving.peak)] for how, saving in gains[:_SHOWN]]
            lines += ["", *table_lines(["alone would do", "node", "peak then"], rows)]
        return "\n".join(lines)


NO_MEMORY = MemoryReport(0, None, False, 0, 0, 0, 0, (), (), (), 0, (), (), 0)
"""The report of an empty program."""


@checked(PassError)
def activation_memory(gm: GraphModule, *args: Any, backward: bool = False) -> MemoryReport:
    """Compute the memory of a program's values over time, without running it (paper, section 6.3).

    The program runs on fake tensors, whose storages live as long as real ones would. Views, in-place results and
    aliases share a storage. A value is freed after its last use; a tensor that autograd saved, after the backward run
    has used it. Scratch memory that a kernel allocates and frees internally is not included.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        args: its inputs, real or fake; only their shapes, strides and dtypes matter.
        backward: also run the gradients of the sum of all outputs. Without it, gradients are off.

    Raises:
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(torch.neg(x)) * 2)
    >>> report = activation_memory(program, torch.ones(250))
    >>> report.peak, report.without_freeing, report.peak_node, report.peak_in_place
    (2000, 3000, relu, 1000)
    """
    watch = _Watch(gm, backward=backward)
    result = watch.propagate(*args)
    watch.live.stop()
    del result
    return watch.report(_bytes_of(args), _bytes_of([tensors_held(gm, node) for node in gm.graph.nodes]))


@dataclass(slots=True)
class _Cell:
    """The record of one storage while the program runs."""

    node: Node | None
    is_backward: bool
    size: int
    allocated: int
    func: Any
    sources: tuple[int, ...]
    freed: int | None = None
    is_scratch: bool = False
    freeing_node: Node | None = None
    nodes: list[Node] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)


class _Gap(NamedTuple):
    """A storage that could be absent from change ``start`` until change ``stop``, and the peak that would remain."""

    number: int
    cell: _Cell
    start: int
    stop: int
    peak: int


class _Watch(KernelRun):
    """A run that tracks its storages."""

    def __init__(self, graph_module: GraphModule, *, backward: bool) -> None:
        super().__init__(graph_module, backward=backward)
        self.listeners.append(self.note_value)
        self.live = LiveStorages(self._change)
        self.cells: list[_Cell] = []
        self.changes: list[int] = []
        """Changes of memory in bytes, in order; negative for frees."""
        self.over_input: dict[int, int] = {}
        """For each storage whose value could be written over an input, the number of that input's storage."""
        self._made_by: Any = None
        self._sources: tuple[int, ...] = ()

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        numbers = tuple(number for tensor in tensors if (number := self.live.number_of(tensor)) is not None)
        now, count = len(self.changes), len(self.cells)
        self._made_by, self._sources = func, numbers
        self.live.record(tensors, result)
        for number in numbers:
            self.cells[number].uses.append(now)
        if len(self.cells) == count + 1 and numbers and isinstance(result, torch.Tensor) and _has_in_place_form(func):
            for tensor in tensors[: 1 + _commutes(func)]:
                number = self.live.number_of(tensor)
                if number is not None and _could_hold(tensor, result, self.cells[number].size):
                    self.over_input.setdefault(count, number)

    def note_value(self, node: Node, value: Any) -> None:
        """Record a node in the storages of its value."""
        for leaf in (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value):
            number = self.live.number_of(leaf) if isinstance(leaf, torch.Tensor) else None
            if number is not None and node.op != "output":
                self.cells[number].nodes.append(node)

    def _change(self, number: int, size: int) -> None:
        now = len(self.changes)
        if size >= 0 and number == len(self.cells):
            self.cells.append(_Cell(self.node, self.is_backward, size, now, self._made_by, self._sources))
        else:
            cell = self.cells[number]
            cell.freed, cell.freeing_node = now, self.node
            cell.is_scratch = self.is_inside and not self.is_backward
        self.changes.append(size)

    # The report.

    def report(self, inputs: int, state: int) -> MemoryReport:
        live = self.curve
        peak = max(live, default=0)
        moment = live.index(peak) if live else 0
        at_peak = next((cell for cell in self.cells if cell.allocated == moment), None)
        in_place, together = self._in_place(peak)
        gaps = self._gaps(moment, peak) if live else []
        again, peak_recompute = self._recomputed(gaps)
        return MemoryReport(
            peak=peak,
            peak_node=None if at_peak is None else at_peak.node,
            peak_is_backward=at_peak is not None and at_peak.is_backward,
            without_freeing=self._without_freeing(),
            left=live[-1] if live else 0,
            inputs=inputs,
            state=state,
            storages=tuple(
                Storage(cell.node, cell.is_backward, tuple(cell.nodes), cell.size, cell.allocated, cell.freed)
                for cell in self.cells
            ),
            live=tuple(live),
            in_place=in_place,
            peak_in_place=together,
            recompute=_savings((gap.cell, gap.peak) for gap in gaps),
            recomputed=again,
            peak_recompute=peak_recompute,
        )

    def _without_freeing(self) -> int:
        changes = [0] * len(self.changes)
        for cell in self.cells:
            if not cell.is_backward:
                changes[cell.allocated] += cell.size
                if cell.is_scratch and cell.freed is not None:
                    changes[cell.freed] -= cell.size
        return max(itertools.accumulate(changes), default=0)

    def _in_place(self, peak: int) -> tuple[tuple[Saving, ...], int]:
        """Return the possible in-place operations, each with the peak that it alone leaves, and the peak with all."""
        changes, merged = list(self.changes), list[tuple[int, int]]()
        for number, source in self.over_input.items():
            cell, other = self.cells[number], self.cells[source]
            ends_here = other.freed is not None and other.freeing_node is cell.node and other.freed > cell.allocated
            if ends_here and not (other.uses and other.uses[-1] > cell.allocated) and not cell.is_backward:
                merged.append((number, source))
                changes[cell.allocated] -= cell.size
                changes[other.freed or 0] += cell.size
        together = max(itertools.accumulate(changes), default=0)
        peaks: list[tuple[_Cell, int]] = []
        for number, source in merged:
            start, stop = self.cells[number].allocated, self.cells[source].freed or 0
            inside = max(self.curve[start:stop])
            peaks.append((self.cells[number], self._peak_without(start, stop, inside - self.cells[number].size)))
        return _savings(peaks), together

    def _gaps(self, moment: int, peak: int) -> list[_Gap]:
        """Return the storages that are unused at the peak and that could be recomputed for their next use."""
        gaps: list[_Gap] = []
        for number, cell in enumerate(self.cells):
            if cell.allocated >= moment or (cell.freed is not None and cell.freed <= moment):
                continue
            place = bisect.bisect_right(cell.uses, moment)
            # Operators with a registered FLOP formula (products, convolutions) take too long to recompute.
            if place == len(cell.uses) or getattr(cell.func, "overloadpacket", None) in flop_registry:
                continue
            last, again = max(cell.allocated, cell.uses[place - 1] if place else 0), cell.uses[place]
            sources = [self.cells[source] for source in cell.sources]
            if last < moment and all(source.freed is None or source.freed >= again for source in sources):
                alone = self._peak_without(last + 1, again, peak - cell.size)
                gaps.append(_Gap(number, cell, last + 1, again, alone))
        return gaps

    def _recomputed(self, gaps: Sequence[_Gap]) -> tuple[tuple[Saving, ...], int]:
        """Choose gaps, greatest first, that do not depend on one another; return them and the peak without them."""
        changes, chosen, needed = list(self.changes), dict[int, _Gap](), set[int]()
        for gap in sorted(gaps, key=lambda gap: -gap.cell.size):
            cell = gap.cell
            if gap.number in needed or not chosen.keys().isdisjoint(cell.sources) or cell.node is None:
                continue
            chosen[gap.number] = gap
            needed.update(cell.sources)
            changes[gap.start] -= cell.size
            changes[gap.stop] += cell.size
        together = max(itertools.accumulate(changes), default=0)
        return _savings((gap.cell, gap.peak) for gap in chosen.values()), together

    def _peak_without(self, start: int, stop: int, inside: int) -> int:
        """Return the peak if the memory is at most ``inside`` from change ``start`` up to change ``stop``."""
        before, after = self._greatest
        return max(before[start], after[stop], inside)

    @functools.cached_property
    def curve(self) -> list[int]:
        """Bytes in use after each change; to be read after the run."""
        return list(itertools.accumulate(self.changes))

    @functools.cached_property
    def _greatest(self) -> tuple[list[int], list[int]]:
        """The maxima of the curve before each change, and from each change on."""
        before = [0, *itertools.accumulate(self.curve, max)]
        after = [0, *itertools.accumulate(reversed(self.curve), max)][::-1]
        return before, after


def _savings(peaks: Iterable[tuple[_Cell, int]]) -> tuple[Saving, ...]:
    savings = [Saving(cell.node, cell.size, peak) for cell, peak in peaks]
    return tuple(sorted(savings, key=lambda saving: (saving.peak, -saving.size)))


@functools.cache
def _has_in_place_form(func: Any) -> bool:
    """Return whether an operator has an in-place form, as ``relu`` has ``relu_``."""
    if not isinstance(func, OpOverload) or func._schema.is_mutable:
        return False
    namespace, _, name = func._schema.name.partition("::")
    return hasattr(getattr(torch.ops, namespace), f"{name}_")


def _commutes(func: OpOverload) -> bool:
    """Return whether an operator commutes, so that it could write over its second operand as well."""
    row = find_operator(getattr(torch, func.overloadpacket.__name__, None))
    return row is not None and row.commutes


def _could_hold(tensor: torch.Tensor, result: torch.Tensor, size: int) -> bool:
    """Return whether a result could replace a tensor that fills its storage of ``size`` bytes."""
    same = tensor.shape == result.shape and tensor.dtype == result.dtype and tensor.stride() == result.stride()
    return same and tensor.numel() * tensor.element_size() == size


def _bytes_of(values: Any) -> int:
    """Return the bytes of the storages of the tensors in ``values``; each storage counts once."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    strided = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
    return sum({storage._cdata: storage.nbytes() for storage in strided}.values())


def _names(storage: Storage) -> str:
    """Return the names of the nodes in a storage, or a description if there are none."""
    if storage.nodes:
        return ", ".join(dict.fromkeys(node.name for node in storage.nodes))
    how = "gradient of" if storage.is_backward else "scratch or saved, of"
    return "gradient of the outputs" if storage.node is None else f"{how} {storage.node}"


def _named(node: Node | None, is_backward: bool) -> str:
    name = "the outputs" if node is None else node.name
    return f"the gradient of {name}" if is_backward else name
