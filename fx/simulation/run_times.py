"""Estimates of a program's run time and memory on a device, without running it (paper, section 6.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.utils.parametrize import ParametrizationList

from fx.analysis.kernel_calls import KernelCall, ProgramCalls, record_calls
from fx.analysis.memory import NO_MEMORY, MemoryReport, activation_memory
from fx.argument_types import checked
from fx.errors import AnalysisError, PassError
from fx.graph_module import GraphModule
from fx.naming.tables import in_bytes, in_seconds, table_lines
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata
from fx.simulation.devices import Device
from fx.simulation.kernel_times import LAUNCH, MEMORY, PYTHON, KernelTimes, Roofline
from fx.simulation.known_devices import get_device

_SHOWN = 10
_QUANTILE = 1.645
"""Standard deviations on each side of the mean that contain 90 % of a normal distribution."""
_CALLS = ("call_function", "call_method", "call_module", "get_attr")
_PYTHON_SPREAD = 0.3
_ALIKE = 0.3
"""Correlation of the errors of two kernels that depend on the same assumption."""
_BESIDE = "what programs take beside their kernels"
_REST = "all else"
"""The uncertainty that remains if all assumptions hold."""
PARAMETRIZATION = "parametrization"
"""The key in ``Device.overheads`` for the Python of a module's parametrization."""
_STATES = {"sgd": 0, "momentum": 1, "adam": 2}
_ACCESSES = {"sgd": 3, "momentum": 5, "adam": 7}
"""The number of times that a step of the optimizer reads or writes each parameter's bytes."""


@dataclass(frozen=True, slots=True)
class Training:
    """The configuration of a training step."""

    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    """The optimizer, which keeps no, one or two numbers for each parameter."""
    recompute: bool = False
    """Whether to drop values that one operation can recompute, and to recompute them in the backward run."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTime:
    """The estimated time of one node. Times are in seconds."""

    node: Node | None
    """The node; None for work that belongs to no node, such as the first gradient or the optimizer."""
    forward: float
    """Seconds of its forward run."""
    backward: float
    """Seconds of its gradient."""
    kernels: int
    """Kernel calls that do any work; views do none."""
    assumption: str
    """The assumption that most of its time depends on."""

    @property
    def seconds(self) -> float:
        """Seconds of the forward run and the gradient together."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The estimated run time and memory of a program on a device."""

    device: Device
    """The device."""
    source: str
    """The source of the times of kernels: ``"roofline"``, ``"measured"`` or ``"trace"``."""
    seconds: float
    """Seconds of one run, or of one step in training."""
    spread: float
    """The relative standard deviation of ``seconds``."""
    nodes: tuple[NodeTime, ...]
    """The nodes that take any time, in order."""
    parts: Mapping[str, float]
    """Seconds by the assumption that they depend on, greatest first."""
    uncertainty: Mapping[str, float]
    """Standard deviation in seconds due to each assumption, greatest first."""
    waiting: float
    """Seconds that the device waits for its host to launch kernels."""
    memory: int
    """Bytes at the peak: inputs, parameters, buffers, activations; in training also gradients and optimizer states."""
    activations: MemoryReport
    """The memory of values in detail."""

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds, in seconds, within which the run time lies with a probability of 90 %."""
        factor = math.exp(_QUANTILE * self.spread)
        return self.seconds / factor, self.seconds * factor

    @property
    def dominating(self) -> str:
        """The assumption that causes most of the uncertainty, apart from the rest that remains if all hold."""
        return next((name for name in self.uncertainty if name != _REST), "nothing")

    @property
    def fits(self) -> bool:
        """True if the device has enough memory."""
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
        greatest = sorted(self.nodes, key=lambda timing: -timing.seconds)[:_SHOWN]
        rows = [
            ["no node" if timing.node is None else timing.node.name, in_seconds(timing.seconds),
             f"{timing.seconds / whole:.1%}", str(timing.kernels), timing.assumption]
            for timing in greatest
        ]  # fmt: skip
        lines += ["", *table_lines(["node", "time", "share", "kernels", "rests on"], rows)]
        if hidden := len(self.nodes) - len(greatest):
            lines.append(f"and {hidden} more")
        return "\n".join(lines)


@checked(PassError)
def simulate(
    gm: GraphModule,
    device: Device | str,
    *args: Any,
    training: Training | None = None,
    times: KernelTimes | None = None,
) -> Simulation:
    """Estimate the run time and the memory of a program on a device, without running it (section 6.3).

    The kernels that PyTorch would call are listed on fake tensors, and ``times`` estimates each, by default with a
    roofline of the device. The result has an interval for the run time and the assumptions behind it. Regions lowered
    to a backend (:func:`fx.lower`) count with their original kernels, since the work of engines is unknown.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        device: a device, or the name of a registered one: ``"V100"``, ``"A100"``, ``"H100"`` and so on.
        args: its inputs, real or fake; only their shapes, strides and dtypes matter. If there are none, they are taken
            from ``meta["tensor_meta"]`` of the placeholders.
        training: estimate a step of training: forward, backward, optimizer.
        times: the source of the times of kernels, if not the roofline.

    Raises:
        AnalysisError: no device has this name, or no inputs are given and a placeholder has no ``tensor_meta``.
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Linear(4096, 4096))
    >>> result = simulate(program, "A100", torch.ones(4096, 4096))
    >>> 0.006 < result.seconds < 0.012, result.dominating
    (True, 'rate of matrix products')
    """
    where = get_device(device) if isinstance(device, str) else device
    inputs = args or _noted_inputs(gm)
    backward = training is not None
    calls = record_calls(gm, *inputs, backward=backward)
    memory = activation_memory(gm, *inputs, backward=backward)
    return estimate_run(calls, memory, where, training=training, times=times)


def estimate_calls(calls: ProgramCalls, device: Device, times: KernelTimes | None = None) -> Simulation:
    """Estimate the time of recorded calls on a device, without their memory."""
    return estimate_run(calls, NO_MEMORY, device, times=times)


def estimate_run(
    calls: ProgramCalls,
    memory: MemoryReport,
    device: Device,
    *,
    training: Training | None = None,
    times: KernelTimes | None = None,
) -> Simulation:
    """Estimate the time and memory of recorded calls on a device: the part of :func:`simulate` that depends on it."""
    sum_up = _Sum(device, Roofline(device) if times is None else times)
    nodes = sum_up.nodes(calls)
    needed = memory.inputs + memory.state + memory.peak
    if training is not None:
        parameters = sum(
            {id(tensor): tensor.numel() * tensor.element_size() for tensor in calls.program.parameters()}.values()
        )
        nodes.append(sum_up.optimizer_step(parameters, _ACCESSES[training.optimizer]))
        needed += _STATES[training.optimizer] * parameters
        if training.recompute:
            again = {saving.node for saving in memory.recomputed}
            nodes += [
                sum_up.again(timing) for timing in list(nodes) if timing.node in again and timing.node is not None
            ]
            needed += memory.peak_recompute - memory.peak
    return sum_up.result(nodes, needed, memory)


def name_of_function(target: Any) -> str:
    """Return the key of a function in ``Device.overheads``."""
    return f"function {getattr(target, '__module__', None)}.{getattr(target, '__name__', target)}"


def python_around(node: Node, program: GraphModule, overheads: Mapping[str, float]) -> float:
    """Return the seconds of Python around the kernels of a node.

    A module counts as its nearest class in ``overheads``, else as ``call_module``. Each parametrization adds a fixed
    time.
    """
    if node.op == "call_module":
        module = program.get_submodule(str(node.target))
        kinds = (kind.__name__ for kind in type(module).__mro__)
        kind_name = next((kind for kind in kinds if kind in overheads), "call_module")
        parametrizations = sum(isinstance(submodule, ParametrizationList) for submodule in module.modules())
        return overheads.get(kind_name, 0.0) + parametrizations * overheads.get(PARAMETRIZATION, 0.0)
    seconds = overheads.get(node.op, 0.0)
    if node.op == "call_function":
        seconds = overheads.get(name_of_function(node.target), overheads.get(_kind_of(node.target), seconds))
    return seconds


def _kind_of(function: Any) -> str:
    if getattr(function, "__module__", None) == "_operator":
        return "operator"
    return "python function" if hasattr(function, "__code__") else "call_function"


class _Sum:
    """Sums of the times of kernels and Python, and of their uncertainties."""

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
        """Return the time of each node, in the order of the program, followed by the time that belongs to no node."""
        by_node = calls.by_node()
        order = [node for node in calls.program.graph.nodes if node in by_node or node.op in _CALLS]
        timings = [self._node(node, by_node.get(node, []), calls.program) for node in (*order, None)]
        self._add(PYTHON, self.device.overheads.get("program", 0.0), _PYTHON_SPREAD, on_host=True)
        return [timing for timing in timings if timing.seconds]

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
        """Return the time of a step of the optimizer, which is bound by memory bandwidth."""
        seconds = parameters * accesses / self.device.bandwidth.at(parameters * accesses)
        self._add(MEMORY, seconds, self.device.memory.spread, on_host=False)
        return NodeTime(None, 0.0, seconds, 1, MEMORY)

    def again(self, timing: NodeTime) -> NodeTime:
        """Return the time to compute a node's value a second time."""
        self._add(timing.assumption, timing.forward, 0.3, on_host=False)
        return NodeTime(timing.node, 0.0, timing.forward, timing.kernels, timing.assumption)

    def result(self, nodes: Sequence[NodeTime], needed: int, memory: MemoryReport) -> Simulation:
        """Return the simulation of the whole program."""
        device, waiting = self.device, 0.0
        seconds = self.on_host + self.on_device
        if device.calibration is not None and seconds:
            self._add(_BESIDE, (device.calibration.longer - 1) * seconds, 0.5, on_host=True)
            seconds = self.on_host + self.on_device
        if device.kind != "cpu":
            seconds = max(self.on_host, self.on_device)
            waiting = max(self.on_host - self.on_device, 0.0)
            # Only the uncertainty of the slower of host and device counts.
            host_takes_longer = self.on_host > self.on_device
            self.uncertain = {
                name: deviation
                for name, deviation in self.uncertain.items()
                if (name in (LAUNCH, PYTHON)) == host_takes_longer
            }
        variance, rest = sum(deviation**2 for deviation in self.uncertain.values()), self.times.spread
        spread = math.sqrt(variance / seconds**2 + rest**2) if seconds else rest
        self.uncertain[_REST] = rest * seconds
        return Simulation(
            device, self.times.name, seconds, spread, tuple(nodes), _greatest_first(self.parts),
            _greatest_first(self.uncertain), waiting, needed, memory,
        )  # fmt: skip


def _greatest_first(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _noted_inputs(gm: GraphModule) -> tuple[Any, ...]:
    """Create inputs from ``meta["tensor_meta"]`` of the placeholders."""
    inputs: list[Any] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        note: Any = node.meta.get("tensor_meta")
        if not isinstance(note, TensorMetadata):
            raise AnalysisError(
                f"nothing is known of the input {node.name}",
                why="simulate was given no inputs, and its placeholder has no meta['tensor_meta']",
                remedy="simulate(gm, device, *inputs), with real or fake tensors",
            )
        inputs.append(torch.empty_strided(note.shape, note.stride, dtype=note.dtype))
    return tuple(inputs)
