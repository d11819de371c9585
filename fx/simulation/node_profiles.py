"""How long each node takes in a real run, beside what was estimated (paper, section 6.3)."""

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
from fx.errors import AnalysisError
from fx.graph_module import GraphModule, expect_program
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
    """What one node took."""

    node: Node
    """The node."""
    module: str
    """The path of the module that it calls or is in."""
    seconds: float
    """Median seconds of its runs."""
    least: float
    """The shortest."""
    most: float
    """The longest."""
    start: float
    """Seconds from the start of the last run until it began."""
    last: float
    """Seconds that it took then."""
    estimated: float | None
    """Seconds that were estimated; None where nothing was."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReport:
    """What each node of a program took."""

    nodes: tuple[NodeProfile, ...]
    """Each node that ran, in order."""
    seconds: float
    """Median seconds of a run that was not profiled."""
    profiled: float
    """Median seconds of a run that was, each paired with one that was not."""
    overhead: float
    """How many times as long a profiled run takes as the other one of its pair, by the median."""
    rounds: int
    """How many pairs of runs there were."""
    estimate: Simulation | None
    """What was estimated, if a device was named."""

    def __str__(self) -> str:
        whole = sum(one.seconds for one in self.nodes) or 1.0
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
        greatest = sorted(self.nodes, key=lambda one: -one.seconds)[:_SHOWN]
        header = ["node", "time", "share"]
        rows = [[one.node.name, in_seconds(one.seconds), f"{one.seconds / whole:.1%}"] for one in greatest]
        if self.estimate is not None:
            header += ["estimated", "ratio"]
            rows = [[*row, *_estimated(one)] for row, one in zip(rows, greatest, strict=True)]
        lines += ["", *table_lines(header, rows)]
        if left := len(self.nodes) - len(greatest):
            lines.append(f"and {left} more")
        return "\n".join(lines)

    def chrome_trace(self) -> dict[str, Any]:
        """The last profiled run as a Chrome trace: a row of nodes, and below it one of what was estimated."""
        rows = ["measured"] if self.estimate is None else ["measured", "estimated"]
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": name}}
            for row, name in enumerate(rows, 1)
        ]
        clock = 0.0
        for one in self.nodes:
            known = {"op": one.node.op, "target": str(one.node.target), "module": one.module}
            if one.node.source is not None:
                known["where"] = str(one.node.source)
            events.append(_event(one.node.name, 1, one.start, one.last, known))
            if one.estimated is not None:
                events.append(_event(one.node.name, 2, clock, one.estimated, known))
                clock += one.estimated
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | Path) -> None:
        """Write :meth:`chrome_trace` to a file, for ``chrome://tracing`` or Perfetto."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


def profile(
    gm: GraphModule,
    *args: Any,
    device: Device | str | None = None,
    times: KernelTimes | None = None,
    rounds: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> ProfileReport:
    """Time each node of a program in real runs, paired with runs without a clock at each node (section 6.3).

    Gradients are off. What the program does to its own state and to the random numbers, it does in each run.

    Args:
        gm: the program.
        args: its inputs; each run is given the same ones.
        device: also estimate the times on this device, as :func:`~fx.simulation.run_times.simulate` does.
        times: the source of the estimated times of kernels.
        rounds: pairs of runs, after two for warm-up.
        clock: what times are read from, in seconds.

    Raises:
        AnalysisError: less than one round was asked for.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> report = profile(fx.symbolic_trace(torch.nn.Linear(4, 4)), torch.ones(2, 4), rounds=3)
    >>> [str(one.node) for one in report.nodes], report.rounds
    (['weight', 'bias', 'linear'], 3)
    """
    expect_program(gm, "profile runs a GraphModule")
    if rounds < 1:
        raise AnalysisError(f"profile cannot run {rounds} rounds", remedy="ask for 1 or more; 10 are the default")
    estimate = None if device is None else simulate(gm, device, *args, times=times)
    timer = _Timer(gm, clock)
    plain, profiled = list[float](), list[float]()
    with torch.no_grad():
        for number in range(_WARM_UP + rounds):
            # What runs second finds the caches warm: each is that in every other round.
            for is_profiled in (False, True) if number % 2 else (True, False):
                seconds = _seconds(timer.run if is_profiled else gm, args, clock)
                if number >= _WARM_UP:
                    (profiled if is_profiled else plain).append(seconds)
            if number + 1 == _WARM_UP:
                timer.taken.clear()
    known = {} if estimate is None else {one.node: one.seconds for one in estimate.nodes}
    nodes = [_node(node, taken, known if estimate is not None else None) for node, taken in timer.taken.items()]
    overhead = statistics.median(long / max(short, 1e-12) for long, short in zip(profiled, plain, strict=True))
    return ProfileReport(
        tuple(nodes), statistics.median(plain), statistics.median(profiled), overhead, rounds, estimate
    )


class _Timer(Interpreter):
    """An interpreter that reads a clock before and after each call of a target."""

    def __init__(self, gm: GraphModule, clock: Callable[[], float]) -> None:
        super().__init__(gm)
        self.taken: dict[Node, list[tuple[float, float]]] = {}
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
        """Run one node, and remember which."""
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
        self.taken.setdefault(self._node, []).append((start - self._began, seconds))
        return result


def _wait_for(result: Any) -> None:
    """Wait until an accelerator has computed a value."""
    tensor = result if isinstance(result, torch.Tensor) else None
    if tensor is None and isinstance(result, (tuple, list, dict)):
        tensor = next((one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)), None)
    if tensor is not None and tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _seconds(run: Callable[..., Any], args: tuple[Any, ...], clock: Callable[[], float]) -> float:
    start = clock()
    _wait_for(run(*args))
    return clock() - start


def _node(node: Node, taken: list[tuple[float, float]], known: Mapping[Node | None, float] | None) -> NodeProfile:
    seconds = [one for _, one in taken]
    estimated = None if known is None else known.get(node, 0.0)
    start, last = taken[-1]
    return NodeProfile(
        node, module_of(node), statistics.median(seconds), min(seconds), max(seconds), start, last, estimated
    )


def _estimated(one: NodeProfile) -> tuple[str, str]:
    """The estimate of a node, and how many times the measured time that is."""
    ratio = f"{one.estimated / one.seconds:.2f}" if one.estimated and one.seconds else "-"
    return "-" if one.estimated is None else in_seconds(one.estimated), ratio


def _event(name: str, row: int, start: float, seconds: float, known: Mapping[str, Any]) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "cat": "node", "name": name, "pid": 1, "tid": row, **times, "args": dict(known)}
