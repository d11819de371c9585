"""Times of kernels that are measured on this machine: each run alone, once per operator and sizes, and remembered."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fx.analysis.kernel_calls import KernelCall, Operand, operands_in
from fx.container_kinds import map_parts
from fx.errors import AnalysisError
from fx.simulation.devices import Device, Machine, refuse_other_machine, this_machine, write_json
from fx.simulation.kernel_times import LAUNCH, KernelTime, Roofline

MEASURED = "measured kernels"
"""The assumption that a kernel takes in a program what it takes alone."""
_SPREAD = 0.05
SHORTEST = 4e-4
"""Seconds that a sample takes at least: calls are repeated in it."""
LONGEST = 0.06
"""Seconds that all samples of a call take, if one call does not take longer."""
MOST_SAMPLES = 12
_LEVELS = (1 << 20, 1 << 23, 1 << 26)
"""Bytes from which on operands are taken from farther away: beyond one cache, beyond the next, in memory."""
_POOL = 1 << 27
"""Bytes that operands from memory are spread over."""
_MOST_RANDOM = 1 << 24
"""Elements from which on random numbers would take longer than what is timed."""
_POSITIONS = {"aten.embedding": 0, "aten._embedding_bag": 0, "aten._embedding_bag_forward_only": 0}


def seconds_of(call: Callable[[], Any], *, longest: float = LONGEST) -> float:
    """Time one call: the lower quartile of some samples, each of as many calls as are needed to read a clock.

    With one thread the clock is that of the thread, so that what other processes take does not count.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    once = max(_sample(call, 1, clock), 1e-7)
    once = max(min(once, _sample(call, 1, clock)), 1e-7)
    repeats = max(1, round(SHORTEST / once))
    count = int(max(3, min(MOST_SAMPLES, longest / (once * repeats))))
    found = sorted(_sample(call, repeats, clock) for _ in range(count))
    return max(found[len(found) // 4], 1e-9)


def _sample(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    collects = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats
    finally:
        if collects:
            gc.enable()


def distances_of(call: KernelCall) -> tuple[int, ...]:
    """Return how far away what a call touches is, in classes: 0 for near, 3 for what comes from memory."""
    return tuple(sum(one.distance > level for level in _LEVELS) for one in call.touched)


class Replay:
    """Runs recorded calls on tensors made for them.

    Random numbers are drawn from a generator of its own. Operands that the program had touched long before are spread
    over as much memory as it had touched since, so that they are in no cache that they would not be in.
    """

    def __init__(self) -> None:
        self._pool = torch.empty(0)
        self._random = torch.Generator().manual_seed(0)
        self._cost: tuple[float, float] | None = None

    def seconds(self, call: KernelCall) -> float:
        """Time a call, without what calling an operator by its overload takes longer than a program does.

        Raises:
            AnalysisError: the kernel does not run on operands that are made up.
        """
        try:
            seconds = self._seconds(call)
            return max(seconds - self._overload_cost(call), seconds / 4)
        except Exception as error:
            raise AnalysisError(
                f"{call.func} cannot be timed alone",
                where=None if call.node is None else call.node.source,
                value=call.key,
                why=f"{type(error).__name__}: {error}",
                remedy="let its time come from the roofline, or read it from a trace",
            ) from error

    def _overload_cost(self, call: KernelCall) -> float:
        """Seconds that calling an operator by its overload takes longer: some, and some more for each argument."""
        if self._cost is None:
            aten: Any = torch.ops.aten
            one, image, weight = torch.ones(1), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
            rest = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
            with torch.no_grad():
                few = seconds_of(lambda: aten.relu.default(one)) - seconds_of(lambda: torch.relu(one))
                many = seconds_of(lambda: aten.convolution.default(image, weight, *rest)) - seconds_of(
                    lambda: torch.conv2d(image, weight)
                )
            self._cost = max(few, 0.0), max(many - few, 0.0) / (len(rest) + 1)
        base, each = self._cost
        return base + each * (len(call.args) - 1)

    def _seconds(self, call: KernelCall) -> float:
        arguments = self._arguments(call)
        func, place = call.func, 0
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if len(arguments) == 1:
                args, kwargs = arguments[0]
                return seconds_of(lambda: func(*args, **kwargs))

            def next_one() -> Any:
                nonlocal place
                place = (place + 1) % len(arguments)
                args, kwargs = arguments[place]
                return func(*args, **kwargs)

            return seconds_of(next_one)

    def _arguments(self, call: KernelCall) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Arguments for one call after the other: several where operands are to come from far away."""
        given = operands_in((call.args, call.kwargs))
        made = [self._tensor(call, operand, place) for place, operand in enumerate(given)]
        far = self._far(call, given)
        if not far:
            return [_filled(call, made)]
        reach = max(reach for reach, _ in far)
        share = sum(given[place].size for _, place in far)
        count = min(max(2, math.ceil(reach / max(share, 1))), 4096)
        pool = self._filled_pool()
        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        offset = 0
        for _ in range(count):
            tensors = list(made)
            for _, place in far:
                operand = given[place]
                span = _span(operand)
                if offset + span > pool.numel():
                    offset = 0
                tensors[place] = pool.as_strided(operand.shape, operand.stride, offset)
                offset += math.ceil(span / 16) * 16
            found.append(_filled(call, tensors))
        return found

    def _far(self, call: KernelCall, given: list[Operand]) -> list[tuple[int, int]]:
        """The operands that come from far away: from how far, and which."""
        found: list[tuple[int, int]] = []
        if call.func._schema.is_mutable:
            return found
        for place, (level, operand) in enumerate(zip(distances_of(call), given, strict=False)):
            if level and operand.dtype == torch.float32 and operand.stride and 4 * _span(operand) < _POOL // 2:
                found.append(((*_LEVELS[1:], _POOL)[level - 1], place))
        return found

    def _filled_pool(self) -> torch.Tensor:
        if not self._pool.numel():
            self._pool = torch.rand(_POOL // 4, generator=self._random) + 0.5
        return self._pool

    def _tensor(self, call: KernelCall, operand: Operand, place: int) -> torch.Tensor:
        if not operand.stride and operand.shape:
            return torch.zeros(operand.shape, dtype=operand.dtype)
        count = _span(operand)
        if operand.dtype.is_floating_point or operand.dtype.is_complex:
            many = count > _MOST_RANDOM
            values = torch.full((count,), 0.75) if many else torch.rand(count, generator=self._random) + 0.5
        elif operand.dtype == torch.bool:
            values = torch.rand(count, generator=self._random) < 0.5
        else:
            values = self._positions(call, place, count)
        return values.to(operand.dtype).as_strided(operand.shape, operand.stride)

    def _positions(self, call: KernelCall, place: int, count: int) -> torch.Tensor:
        """Integers that are positions in the first operand of floating-point numbers, where they may be."""
        if call.name.startswith("aten._embedding_bag") and place == 2:  # where each bag begins
            return torch.linspace(0, max(math.prod(call.given[1].shape) - 1, 0), count).long()
        looked_up = next((one for one in call.given if one.dtype.is_floating_point and one.shape), None)
        most = 2
        if looked_up is not None:
            dim = _POSITIONS.get(call.name)
            most = min(looked_up.shape) if dim is None else looked_up.shape[dim]
        return torch.randint(0, max(most, 1), (count,), generator=self._random)


def _span(operand: Operand) -> int:
    """Elements from the first to the last one in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(operand.shape, operand.stride, strict=True) if size)


def _filled(call: KernelCall, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    left = iter(tensors)

    def put(value: Any) -> Any:
        return next(left) if isinstance(value, Operand) else map_parts(put, value)

    args = tuple(put(value) for value in call.args)
    kwargs: Mapping[str, Any] = {name: put(value) for name, value in call.kwargs.items()}
    return args, dict(kwargs)


class MeasuredTimes:
    """Runs each kernel of a program once for each set of sizes, and remembers what it took.

    >>> from fx.simulation.calibration import calibrate
    >>> from fx.simulation.run_times import simulate
    >>> device = calibrate()                                              # doctest: +SKIP
    >>> times = MeasuredTimes(device, "times.json")                       # doctest: +SKIP
    >>> simulate(program, device, *inputs, times=times).seconds           # doctest: +SKIP
    0.0747
    """

    name = "measured"

    def __init__(self, device: Device, path: str | Path | None = None) -> None:
        """A memory of times.

        Args:
            device: this machine, as :func:`~fx.simulation.calibration.calibrate` returns it. What cannot be run alone
                takes what its roofline says.
            path: a file to remember in; :meth:`save` writes it.

        Raises:
            AnalysisError: the device or the file is of another machine.
        """
        if device.calibration is None:
            raise AnalysisError(
                f"kernels cannot be run on {device.name} from here",
                why="times are measured on this machine",
                remedy="give MeasuredTimes what calibrate() returns",
            )
        refuse_other_machine(device.calibration.machine, device.name)
        self.device = device
        self.refused: dict[str, str] = {}
        """Calls that cannot be run alone, by their keys, with the reason."""
        self._path = None if path is None else Path(path)
        self._known = _read(self._path) if self._path is not None and self._path.exists() else {}
        self._roofline = Roofline(device)
        self._replay = Replay()

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that is left when all else is right."""
        return 0.0 if self.device.calibration is None else self.device.calibration.measured

    def __len__(self) -> int:
        return len(self._known)

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return what a call takes: as remembered, or measured now."""
        key = f"{call.key} {''.join(map(str, distances_of(call)))}"
        if key in self.refused:
            return self._roofline.time_of(call)
        if key not in self._known:
            try:
                self._known[key] = self._replay.seconds(call)
            except AnalysisError as error:
                self.refused[key] = str(error)
                return self._roofline.time_of(call)
        seconds = self._known[key]
        if call.cost is None:
            return KernelTime(seconds, LAUNCH, self.device.launch.spread)
        return KernelTime(seconds, MEASURED, _SPREAD)

    def save(self) -> None:
        """Write what is remembered to the file, whole or not at all.

        Raises:
            AnalysisError: no file was named.
        """
        if self._path is None:
            raise AnalysisError("there is no file to remember times in", remedy='MeasuredTimes(device, "times.json")')
        write_json(self._path, {"machine": asdict(this_machine()), "seconds": self._known})


def _read(path: Path) -> dict[str, float]:
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        machine = Machine(**data["machine"])
        known = {str(key): float(seconds) for key, seconds in data["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} holds no times that can be read", why=f"{type(error).__name__}: {error}", remedy="remove it"
        ) from error
    refuse_other_machine(machine, str(path), "name another file for this machine")
    return known
