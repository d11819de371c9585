"""Profiles: the time of each node in real runs, beside its estimate (paper, section 6.3)."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.analysis.cost import module_of
from fx.argument_types import checked
from fx.errors import AnalysisError, PassError
from fx.graph_module import GraphModule
from fx.interpreter import Interpreter
from fx.naming.tables import in_seconds, table_lines
from fx.node import Argument, Node, Target
from fx.simulation.devices import Device
from fx.simulation.kernel_times import KernelTimes
from fx.simulation.run_times import Simulation, simulate

_SHOWN = 15
_WARM_UP = 2


@dataclass(frozen=True, slots=True, eq=False)
class NodeProfile:
    """The measured times of one node."""

    node: Node
    """The node."""
    module: str
    """The path of the module that it calls or belongs to."""
    seconds: float
    """Median seconds of its runs."""
    least: float
    """Seconds of its shortest run."""
    most: float
    """Seconds of its longest run."""
    start: float
    """Seconds from the start of the last run of the program until the node started."""
    last: float
    """Seconds of the node in that run."""
    estimated: float | None
    """Estimated seconds; None without an estimate."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReport:
    """The measured times of each node of a program."""

    nodes: tuple[NodeProfile, ...]
    """Each node that ran, in order."""
    seconds: float
    """Median seconds of a run that was not profiled."""
    profiled: float
    """Median seconds of a profiled run; each is paired with one that was not profiled."""
    overhead: float
    """Median ratio, over the pairs, of the profiled to the unprofiled time."""
    rounds: int
    """The number of pairs of runs."""
    estimate: Simulation | None
    """The estimate, if a device was named."""

    def __str__(self) -> str:
        whole = sum(timing.seconds for timing in self.nodes) or 1.0
        lines = [
            f"{in_seconds(self.seconds)} a run, median of {self.rounds}; profiled {in_seconds(self.profiled)} "
            f"({self.overhead:.2f} times)",
        ]
        if self.estimate is not None:
            low, high = self.estimate.interval
            lines.append(
                f"estimated {in_seconds(self.estimate.seconds)} ({in_seconds(low)} to {in_seconds(high)}), "
                f"{self.estimate.source} of {self.estimate.device.name}"
            )
        greatest = sorted(self.nodes, key=lambda timing: -timing.seconds)[:_SHOWN]
        header = ["node", "time", "share"]
        rows = [[timing.node.name, in_seconds(timing.seconds), f"{timing.seconds / whole:.1%}"] for timing in greatest]
        if self.estimate is not None:
            header += ["estimated", "ratio"]
            rows = [[*row, *_estimated(timing)] for row, timing in zip(rows, greatest, strict=True)]
        lines += ["", *table_lines(header, rows)]
        if hidden := len(self.nodes) - len(greatest):
            lines.append(f"and {hidden} more")
        return "\n".join(lines)

    def chrome_trace(self) -> dict[str, Any]:
        """Return the last profiled run as a Chrome trace: a row of measured nodes, and one of estimates below it."""
        rows = ["measured"] if self.estimate is None else ["measured", "estimated"]
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": name}}
            for row, name in enumerate(rows, 1)
        ]
        clock = 0.0
        for timing in self.nodes:
            details = {"op": timing.node.op, "target": str(timing.node.target), "module": timing.module}
            if timing.node.source is not None:
                details["where"] = str(timing.node.source)
            events.append(_event(timing.node.name, 1, timing.start, timing.last, details))
            if timing.estimated is not None:
                events.append(_event(timing.node.name, 2, clock, timing.estimated, details))
                clock += timing.estimated
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | Path) -> None:
        """Write :meth:`chrome_trace` to a file, for ``chrome://tracing`` or Perfetto."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


@checked(PassError)
def profile(
    gm: GraphModule,
    *args: Any,
    device: Device | str | None = None,
    times: KernelTimes | None = None,
    rounds: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> ProfileReport:
    """Time each node of a program in real runs, paired with runs that do not time nodes (section 6.3).

    Gradients are off. Each run has the program's side effects on its state and on the random number generators.

    Args:
        gm: the program.
        args: its inputs; all runs take the same ones.
        device: also estimate the times on this device, as :func:`~fx.simulation.run_times.simulate` does.
        times: the source of the estimated times of kernels.
        rounds: the number of pairs of runs, after two pairs for warm-up.
        clock: a function that returns the time in seconds.

    Raises:
        AnalysisError: ``rounds`` is below 1.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> report = profile(fx.symbolic_trace(torch.nn.Linear(4, 4)), torch.ones(2, 4), rounds=3)
    >>> [str(one.node) for one in report.nodes], report.rounds
    (['weight', 'bias', 'linear'], 3)
    """
    if rounds < 1:
        raise AnalysisError(f"profile cannot run {rounds} rounds", remedy="ask for 1 or more; 10 are the default")
    estimate = None if device is None else simulate(gm, device, *args, times=times)
    timer = _Timer(gm, clock)
    plain, profiled = list[float](), list[float]()
    with torch.no_grad():
        for number in range(_WARM_UP + rounds):
            # The second run of a pair finds the caches warm, so the order alternates.
            for is_profiled in (False, True) if number % 2 else (True, False):
                seconds = _seconds(timer.run if is_profiled else gm, args, clock)
                if number >= _WARM_UP:
                    (profiled if is_profiled else plain).append(seconds)
            if number + 1 == _WARM_UP:
                timer.times_of.clear()
    estimates = {} if estimate is None else {timing.node: timing.seconds for timing in estimate.nodes}
    nodes = [
        _node(node, node_times, estimates if estimate is not None else None)
        for node, node_times in timer.times_of.items()
    ]
    overhead = statistics.median(long / max(short, 1e-12) for long, short in zip(profiled, plain, strict=True))
    return ProfileReport(
        tuple(nodes), statistics.median(plain), statistics.median(profiled), overhead, rounds, estimate
    )


class _Timer(Interpreter):
    """An interpreter that reads a clock before and after each call of a target."""

    def __init__(self, gm: GraphModule, clock: Callable[[], float]) -> None:
        super().__init__(gm)
        self.times_of: dict[Node, list[tuple[float, float]]] = {}
        self._clock = clock
        self._began = 0.0
        self._node: Node | None = None
        for op in ("call_function", "call_method", "call_module", "get_attr"):
            setattr(self, op, functools.partial(self._timed, getattr(self, op)))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program once."""
        self._began = self._clock()
        return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        """Run one node, and remember it for the timer."""
        self._node = n
        return super().run_node(n)

    def _timed(
        self, call: Callable[..., Any], target: Target, args: tuple[Argument, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        clock = self._clock
        start = clock()
        result = call(target, args, kwargs)
        _wait_for(result)
        seconds = clock() - start
        assert self._node is not None
        self.times_of.setdefault(self._node, []).append((start - self._began, seconds))
        return result


def _wait_for(result: Any) -> None:
    """Wait until an accelerator has computed a value."""
    tensor = result if isinstance(result, torch.Tensor) else None
    if tensor is None and isinstance(result, (tuple, list, dict)):
        tensor = next((leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)), None)
    if tensor is not None and tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _seconds(run: Callable[..., Any], args: tuple[Any, ...], clock: Callable[[], float]) -> float:
    start = clock()
    _wait_for(run(*args))
    return clock() - start


def _node(
    node: Node, node_times: list[tuple[float, float]], estimates: Mapping[Node | None, float] | None
) -> NodeProfile:
    seconds = [duration for _, duration in node_times]
    estimated = None if estimates is None else estimates.get(node, 0.0)
    start, last = node_times[-1]
    return NodeProfile(
        node, module_of(node), statistics.median(seconds), min(seconds), max(seconds), start, last, estimated
    )


def _estimated(timing: NodeProfile) -> tuple[str, str]:
    """Return the estimate of a node, and its ratio to the measured time, as texts."""
    ratio = f"{timing.estimated / timing.seconds:.2f}" if timing.estimated and timing.seconds else "-"
    return "-" if timing.estimated is None else in_seconds(timing.estimated), ratio


def _event(name: str, row: int, start: float, seconds: float, details: Mapping[str, Any]) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "cat": "node", "name": name, "pid": 1, "tid": row, **times, "args": dict(details)}
