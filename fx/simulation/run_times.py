"""How long a program takes on a device and what memory it needs, without running it (paper, section 6.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.utils.parametrize import ParametrizationList

from fx.analysis.kernel_calls import KernelCall, ProgramCalls, record_calls
from fx.analysis.memory import NO_MEMORY, MemoryReport, activation_memory
from fx.errors import AnalysisError
from fx.graph_module import GraphModule, expect_program
from fx.naming.tables import in_bytes, in_seconds, table_lines
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata
from fx.simulation.devices import Device
from fx.simulation.kernel_times import LAUNCH, MEMORY, PYTHON, KernelTimes, Roofline
from fx.simulation.known_devices import get_device

_SHOWN = 10
_QUANTILE = 1.645
"""Standard deviations on each side that hold 90 % of a normal distribution."""
_CALLS = ("call_function", "call_method", "call_module", "get_attr")
_PYTHON_SPREAD = 0.3
_ALIKE = 0.3
"""Correlation of the errors of two kernels that rest on the same assumption."""
_BESIDE = "what programs take beside their kernels"
_REST = "all else"
"""What is left of the uncertainty when all assumptions hold."""
PARAMETRIZATION = "parametrization"
"""The name that the Python of each parametrization of a module is known by."""
_STATES = {"sgd": 0, "momentum": 1, "adam": 2}
_ACCESSES = {"sgd": 3, "momentum": 5, "adam": 7}
"""Times that a step of the optimizer reads or writes as many bytes as there are parameters."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a program is trained."""

    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    """The optimizer: it keeps none, one or two numbers for each parameter."""
    recompute: bool = False
    """Whether values that one operation makes again are dropped after the forward run and made again when needed."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTime:
    """What one node takes. Times are seconds."""

    node: Node | None
    """The node; None: what belongs to none, as the first gradient or the optimizer."""
    forward: float
    """Its forward run."""
    backward: float
    """Its gradient."""
    kernels: int
    """Calls of kernels that do anything."""
    assumption: str
    """What most of its time rests on."""

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What a program takes on a device, by an estimate."""

    device: Device
    """The device."""
    source: str
    """Where the times of kernels are from: ``"roofline"``, ``"measured"`` or ``"trace"``."""
    seconds: float
    """Seconds of one run; in training of one step."""
    spread: float
    """Its relative standard deviation."""
    nodes: tuple[NodeTime, ...]
    """Each node that takes any time, in order."""
    parts: Mapping[str, float]
    """Seconds by the assumption that they rest on, greatest first."""
    uncertainty: Mapping[str, float]
    """By how many seconds each assumption may be off (a standard deviation), greatest first."""
    waiting: float
    """Seconds in which the device waits for its host to launch kernels."""
    memory: int
    """Bytes needed at the peak: inputs, parameters, buffers, activations; in training also gradients and states."""
    activations: MemoryReport
    """The memory of values in detail."""

    @property
    def interval(self) -> tuple[float, float]:
        """The seconds between which the run time is expected to be with a probability of 90 %."""
        factor = math.exp(_QUANTILE * self.spread)
        return self.seconds / factor, self.seconds * factor

    @property
    def dominating(self) -> str:
        """The assumption that makes most of the uncertainty, beside what is left when all of them hold."""
        return next((name for name in self.uncertainty if name != _REST), "nothing")

    @property
    def fits(self) -> bool:
        """Return whether the memory of the device is enough."""
        return self.memory <= self.device.capacity.value

    def __str__(self) -> str:
        low, high = self.interval
        fits = "" if self.fits else f", more than the {in_bytes(self.device.capacity.value)} that it has"
        lines = [
            f"{in_seconds(self.seconds)} ({in_seconds(low)} to {in_seconds(high)}) on {self.device.name}, "
            f"{self.source}",
            f"  uncertain most of all: {self.dominating}",
            f"  memory {in_bytes(self.memory)}{fits}",
        ]
        if self.waiting > 0.05 * self.seconds:
            lines.append(f"  the device waits {in_seconds(self.waiting)} for kernels to be launched")
        whole = sum(self.parts.values()) or 1.0
        rows = [
            [name, in_seconds(part), f"{part / whole:.1%}", in_seconds(self.uncertainty.get(name, 0.0))]
            for name, part in self.parts.items()
        ]
        lines += ["", *table_lines(["rests on", "time", "share", "may be off by"], rows)]
        greatest = sorted(self.nodes, key=lambda one: -one.seconds)[:_SHOWN]
        rows = [
            ["no node" if one.node is None else one.node.name, in_seconds(one.seconds), f"{one.seconds / whole:.1%}",
             str(one.kernels), one.assumption]
            for one in greatest
        ]  # fmt: skip
        lines += ["", *table_lines(["node", "time", "share", "kernels", "rests on"], rows)]
        if left := len(self.nodes) - len(greatest):
            lines.append(f"and {left} more")
        return "\n".join(lines)


def simulate(
    gm: GraphModule,
    device: Device | str,
    *args: Any,
    training: Training | None = None,
    times: KernelTimes | None = None,
) -> Simulation:
    """Estimate how long a program takes on a device and what memory it needs, without running it (section 6.3).

    The kernels that PyTorch would call are listed on fake tensors, and each takes what ``times`` says: by default a
    roofline of the device. The result says between which times the real one is expected, and what that rests on.
    Parts that a backend computes (:func:`fx.lower`) count as the kernels that they were made of, since what engines do
    is not known.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        device: a device, or the name of one that is known: ``"V100"``, ``"A100"``, ``"H100"`` and so on.
        args: its inputs, real or fake; of them only shapes, strides and dtypes count. Without any, they are those of
            which placeholders have ``meta["tensor_meta"]``.
        training: estimate a step of training: forward, backward, optimizer.
        times: another source of the times of kernels.

    Raises:
        AnalysisError: there is no device of that name, or nothing is known of the inputs.
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Linear(4096, 4096))
    >>> result = simulate(program, "A100", torch.ones(4096, 4096))
    >>> 0.006 < result.seconds < 0.012, result.dominating
    (True, 'rate of matrix products')
    """
    expect_program(gm, "simulate looks at a GraphModule")
    where = get_device(device) if isinstance(device, str) else device
    given = args or _noted_inputs(gm)
    backward = training is not None
    calls = record_calls(gm, *given, backward=backward)
    memory = activation_memory(gm, *given, backward=backward)
    return estimate_run(calls, memory, where, training=training, times=times)


def estimate_calls(calls: ProgramCalls, device: Device, times: KernelTimes | None = None) -> Simulation:
    """Estimate what recorded calls take on a device, without the memory that they need."""
    return estimate_run(calls, NO_MEMORY, device, times=times)


def estimate_run(
    calls: ProgramCalls,
    memory: MemoryReport,
    device: Device,
    *,
    training: Training | None = None,
    times: KernelTimes | None = None,
) -> Simulation:
    """Estimate what recorded calls take on a device; of :func:`simulate` what depends on the device."""
    sum_up = _Sum(device, Roofline(device) if times is None else times)
    nodes = sum_up.nodes(calls)
    needed = memory.inputs + memory.state + memory.peak
    if training is not None:
        parameters = sum({id(one): one.numel() * one.element_size() for one in calls.program.parameters()}.values())
        nodes.append(sum_up.optimizer_step(parameters, _ACCESSES[training.optimizer]))
        needed += _STATES[training.optimizer] * parameters
        if training.recompute:
            again = {one.node for one in memory.recomputed}
            nodes += [sum_up.again(one) for one in list(nodes) if one.node in again and one.node is not None]
            needed += memory.peak_recompute - memory.peak
    return sum_up.result(nodes, needed, memory)


def name_of_function(target: Any) -> str:
    """Return what the time of Python of a function is known by."""
    return f"function {getattr(target, '__module__', None)}.{getattr(target, '__name__', target)}"


def python_around(node: Node, program: GraphModule, overheads: Mapping[str, float]) -> float:
    """Return the seconds of Python around the kernels of a node.

    Modules are known by the first class of theirs that is; what a module takes to compute each of its parametrizations
    comes on top.
    """
    if node.op == "call_module":
        module = program.get_submodule(str(node.target))
        kinds = (kind.__name__ for kind in type(module).__mro__)
        known = next((kind for kind in kinds if kind in overheads), "call_module")
        parametrizations = sum(isinstance(one, ParametrizationList) for one in module.modules())
        return overheads.get(known, 0.0) + parametrizations * overheads.get(PARAMETRIZATION, 0.0)
    seconds = overheads.get(node.op, 0.0)
    if node.op == "call_function":
        seconds = overheads.get(name_of_function(node.target), overheads.get(_kind_of(node.target), seconds))
    return seconds


def _kind_of(function: Any) -> str:
    if getattr(function, "__module__", None) == "_operator":
        return "operator"
    return "python function" if hasattr(function, "__code__") else "call_function"


class _Sum:
    """Adds up what kernels and Python take."""

    def __init__(self, device: Device, times: KernelTimes) -> None:
        self.device = device
        self.times = times
        self.parts: dict[str, float] = {}
        self.uncertain: dict[str, float] = {}
        self._together: dict[str, float] = {}
        self._apart: dict[str, float] = {}
        self.on_host = 0.0
        self.on_device = 0.0

    def nodes(self, calls: ProgramCalls) -> list[NodeTime]:
        """Return what each node takes, in the order of the program, and then what belongs to none."""
        by_node = calls.by_node()
        order = [node for node in calls.program.graph.nodes if node in by_node or node.op in _CALLS]
        found = [self._node(node, by_node.get(node, []), calls.program) for node in (*order, None)]
        self._add(PYTHON, self.device.overheads.get("program", 0.0), _PYTHON_SPREAD, on_host=True)
        return [one for one in found if one.seconds]

    def _node(self, node: Node | None, calls: Sequence[KernelCall], program: GraphModule) -> NodeTime:
        python = 0.0 if node is None else python_around(node, program, self.device.overheads)
        self._add(PYTHON, python, _PYTHON_SPREAD, on_host=True)
        spent = {False: python, True: 0.0}
        assumptions = {PYTHON: python}
        for call in calls:
            time = self.times.time_of(call)
            self._add(time.assumption, time.seconds, time.spread, on_host=False)
            self._add(LAUNCH, time.launch, self.device.launch.spread, on_host=True)
            spent[call.is_backward] += time.seconds + (time.launch if self.device.kind == "cpu" else 0.0)
            assumptions[time.assumption] = assumptions.get(time.assumption, 0.0) + time.seconds
        kernels = sum(call.cost is not None for call in calls)
        return NodeTime(node, spent[False], spent[True], kernels, max(assumptions, key=assumptions.__getitem__))

    def _add(self, assumption: str, seconds: float, spread: float, *, on_host: bool) -> None:
        if not seconds:
            return
        self.parts[assumption] = self.parts.get(assumption, 0.0) + seconds
        off = seconds * spread
        together = self._together[assumption] = self._together.get(assumption, 0.0) + off
        apart = self._apart[assumption] = self._apart.get(assumption, 0.0) + off**2
        self.uncertain[assumption] = math.sqrt(_ALIKE * together**2 + (1 - _ALIKE) * apart)
        if on_host:
            self.on_host += seconds
        else:
            self.on_device += seconds

    def optimizer_step(self, parameters: int, accesses: int) -> NodeTime:
        """Return what a step of the optimizer takes, which is bound by memory."""
        seconds = parameters * accesses / self.device.bandwidth.at(parameters * accesses)
        self._add(MEMORY, seconds, self.device.memory.spread, on_host=False)
        return NodeTime(None, 0.0, seconds, 1, MEMORY)

    def again(self, one: NodeTime) -> NodeTime:
        """Return what computing a node's value a second time takes."""
        self._add(one.assumption, one.forward, 0.3, on_host=False)
        return NodeTime(one.node, 0.0, one.forward, one.kernels, one.assumption)

    def result(self, nodes: Sequence[NodeTime], needed: int, memory: MemoryReport) -> Simulation:
        """The whole."""
        device, waiting = self.device, 0.0
        seconds = self.on_host + self.on_device
        if device.calibration is not None and seconds:
            self._add(_BESIDE, (device.calibration.longer - 1) * seconds, 0.5, on_host=True)
            seconds = self.on_host + self.on_device
        if device.kind != "cpu":
            seconds = max(self.on_host, self.on_device)
            waiting = max(self.on_host - self.on_device, 0.0)
            # The uncertainty of the host does not count where the device takes longer, or the other way round.
            host_takes_longer = self.on_host > self.on_device
            self.uncertain = {
                name: one for name, one in self.uncertain.items() if (name in (LAUNCH, PYTHON)) == host_takes_longer
            }
        variance, left = sum(one**2 for one in self.uncertain.values()), self.times.spread
        spread = math.sqrt(variance / seconds**2 + left**2) if seconds else left
        self.uncertain[_REST] = left * seconds
        return Simulation(
            device, self.times.name, seconds, spread, tuple(nodes), _greatest_first(self.parts),
            _greatest_first(self.uncertain), waiting, needed, memory,
        )  # fmt: skip


def _greatest_first(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _noted_inputs(gm: GraphModule) -> tuple[Any, ...]:
    """Inputs of which the placeholders have notes."""
    found: list[Any] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        note: Any = node.meta.get("tensor_meta")
        if not isinstance(note, TensorMetadata):
            raise AnalysisError(
                f"nothing is known of the input {node.name}",
                why="simulate was given no inputs, and its placeholder has no meta['tensor_meta']",
                remedy="simulate(gm, device, *inputs), with real or fake tensors",
            )
        found.append(torch.empty_strided(note.shape, note.stride, dtype=note.dtype))
    return tuple(found)
