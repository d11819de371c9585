"""Measured times of kernels: each is run alone on this machine, once per operator and sizes, and cached."""

from __future__ import annotations

import gc
import json
import math
import sys
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
"""The assumption that a kernel takes as long in a program as it does alone."""
_SPREAD = 0.05
SHORTEST = 4e-4
"""The minimum seconds of a sample; short calls are repeated to fill it."""
LONGEST = 0.06
"""The budget in seconds for all samples of a call; slow calls exceed it, since three samples are always taken."""
MOST_SAMPLES = 12
_LEVELS = (1 << 20, 1 << 23, 1 << 26)
"""Bytes of reuse distance beyond which operands are out of the first cache, out of the next, and in memory."""
_POOL = 1 << 27
"""Bytes of the buffer that far operands are placed in."""
_MOST_RANDOM = 1 << 24
"""The largest number of elements to fill with random numbers; more would take longer than the timing itself."""
_POSITIONS = {"aten.embedding": 0, "aten._embedding_bag": 0, "aten._embedding_bag_forward_only": 0}


def seconds_of(call: Callable[[], Any], *, longest: float = LONGEST) -> float:
    """Time one call: return the lower quartile of several samples, in seconds per call.

    Each sample repeats the call often enough for the clock's resolution. With one thread, the thread's CPU time is
    measured, which excludes other processes.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    once = max(_sample(call, 1, clock), 1e-7)
    once = max(min(once, _sample(call, 1, clock)), 1e-7)
    repeats = max(1, round(SHORTEST / once))
    count = int(max(3, min(MOST_SAMPLES, longest / (once * repeats))))
    samples = sorted(_sample(call, repeats, clock) for _ in range(count))
    return max(samples[len(samples) // 4], 1e-9)


def _sample(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    collects, profiler = gc.isenabled(), sys.getprofile()
    gc.disable()
    sys.setprofile(None)
    try:
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats
    finally:
        sys.setprofile(profiler)
        if collects:
            gc.enable()


def distances_of(call: KernelCall) -> tuple[int, ...]:
    """Return the class of the reuse distance of each touched storage: 0 for near, up to 3 for memory."""
    return tuple(sum(touched.distance > level for level in _LEVELS) for touched in call.touched)


class Replay:
    """A runner of recorded calls on newly created tensors.

    Random numbers come from a separate generator. Operands that the program last used long ago differ between
    successive calls, spread over as much memory as the program touched since. So no cache holds them that would not
    hold them in the program.
    """

    def __init__(self) -> None:
        self._pool = torch.empty(0)
        self._random = torch.Generator().manual_seed(0)
        self._cost: tuple[float, float] | None = None

    def seconds(self, call: KernelCall) -> float:
        """Time a call, without the extra time of calling an operator by its overload, which programs do not spend.

        Raises:
            AnalysisError: the kernel does not run on generated operands.
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
        """Return the extra seconds of calling an operator by its overload: a base, and a cost per argument."""
        if self._cost is None:
            aten: Any = torch.ops.aten
            vector, image, weight = torch.ones(1), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
            rest = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
            with torch.no_grad():
                few = seconds_of(lambda: aten.relu.default(vector)) - seconds_of(lambda: torch.relu(vector))
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

            def call_next() -> Any:
                nonlocal place
                place = (place + 1) % len(arguments)
                args, kwargs = arguments[place]
                return func(*args, **kwargs)

            return seconds_of(call_next)

    def _arguments(self, call: KernelCall) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments of successive calls: several if operands have to come from far away, else one."""
        operands = operands_in((call.args, call.kwargs))
        near_tensors = [self._tensor(call, operand, place) for place, operand in enumerate(operands)]
        far = self._far(call, operands)
        if not far:
            return [_filled(call, near_tensors)]
        reach = max(reach for reach, _ in far)
        share = sum(operands[place].size for _, place in far)
        count = min(max(2, math.ceil(reach / max(share, 1))), 4096)
        pool = self._filled_pool()
        argument_sets: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        offset = 0
        for _ in range(count):
            tensors = list(near_tensors)
            for _, place in far:
                operand = operands[place]
                span = _span(operand)
                if offset + span > pool.numel():
                    offset = 0
                tensors[place] = pool.as_strided(operand.shape, operand.stride, offset)
                offset += math.ceil(span / 16) * 16
            argument_sets.append(_filled(call, tensors))
        return argument_sets

    def _far(self, call: KernelCall, operands: list[Operand]) -> list[tuple[int, int]]:
        """Return the distance in bytes and the position of each operand that has to come from far away."""
        far: list[tuple[int, int]] = []
        if call.func._schema.is_mutable:
            return far
        for place, (level, operand) in enumerate(zip(distances_of(call), operands, strict=False)):
            if level and operand.dtype == torch.float32 and operand.stride and 4 * _span(operand) < _POOL // 2:
                far.append(((*_LEVELS[1:], _POOL)[level - 1], place))
        return far

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
        """Return random integers that are valid positions in the call's first floating-point operand."""
        if call.name.startswith("aten._embedding_bag") and place == 2:  # the start of each bag
            return torch.linspace(0, max(math.prod(call.given[1].shape) - 1, 0), count).long()
        looked_up = next((operand for operand in call.given if operand.dtype.is_floating_point and operand.shape), None)
        most = 2
        if looked_up is not None:
            dim = _POSITIONS.get(call.name)
            most = min(looked_up.shape) if dim is None else looked_up.shape[dim]
        return torch.randint(0, max(most, 1), (count,), generator=self._random)


def _span(operand: Operand) -> int:
    """Return the number of elements from the first to the last one in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(operand.shape, operand.stride, strict=True) if size)


def _filled(call: KernelCall, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    remaining = iter(tensors)

    def put(value: Any) -> Any:
        return next(remaining) if isinstance(value, Operand) else map_parts(put, value)

    args = tuple(put(value) for value in call.args)
    kwargs: Mapping[str, Any] = {name: put(value) for name, value in call.kwargs.items()}
    return args, dict(kwargs)


class MeasuredTimes:
    """A source of times that runs each kernel once for each set of sizes, and caches the time.

    >>> from fx.simulation.calibration import calibrate
    >>> from fx.simulation.run_times import simulate
    >>> device = calibrate()                                              # doctest: +SKIP
    >>> times = MeasuredTimes(device, "times.json")                       # doctest: +SKIP
    >>> simulate(program, device, *inputs, times=times).seconds           # doctest: +SKIP
    0.0747
    """

    name = "measured"

    def __init__(self, device: Device, path: str | Path | None = None) -> None:
        """Create a cache of times, filled from a file if it exists.

        Args:
            device: this machine, as :func:`~fx.simulation.calibration.calibrate` returns it. Its roofline estimates
                kernels that cannot be run alone.
            path: the file of the cache; :meth:`save` writes it.

        Raises:
            AnalysisError: the device or the file is from another machine, or the file is invalid.
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
        """Relative standard deviation of whole programs that remains if all assumptions hold."""
        return 0.0 if self.device.calibration is None else self.device.calibration.measured

    def __len__(self) -> int:
        return len(self._known)

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return the time of a call, cached or measured now."""
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
        """Write the cache to its file, atomically.

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
        seconds_by_key = {str(key): float(seconds) for key, seconds in data["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} holds no times that can be read", why=f"{type(error).__name__}: {error}", remedy="remove it"
        ) from error
    refuse_other_machine(machine, str(path), "name another file for this machine")
    return seconds_by_key
