"""Devices that programs run on, as figures with their sources (paper, section 6.3)."""

from __future__ import annotations

import bisect
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from fx.errors import AnalysisError
from fx.simulation.product_sizes import Surface


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its source."""

    value: float
    """The number, in the unit of the field that holds it."""
    source: str
    """A public document, ``"measured"``, or a description of the assumption."""
    spread: float = 0.1
    """Relative standard deviation of the values that programs reach."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A positive quantity that depends on a size, interpolated linearly on logarithmic axes.

    >>> round(Curve((1.0, 100.0), (10.0, 1000.0)).at(10.0), 6)
    100.0
    """

    sizes: tuple[float, ...]
    """The known sizes, ascending."""
    values: tuple[float, ...]
    """The values at these sizes."""

    def at(self, size: float) -> float:
        """Return the value at ``size``; outside of the known sizes, the value at the nearest end."""
        sizes, values = self.sizes, self.values
        if size <= sizes[0] or len(sizes) == 1:
            return values[0]
        if size >= sizes[-1]:
            return values[-1]
        place = bisect.bisect_right(sizes, size)
        low, high = sizes[place - 1], sizes[place]
        share = math.log(size / low) / math.log(high / low)
        return math.exp(math.log(values[place - 1]) * (1 - share) + math.log(values[place]) * share)

    def beyond(self, size: float) -> float:
        """Return the value at ``size``; above the known sizes it is proportional to the size."""
        last = self.sizes[-1]
        return self.at(size) * (size / last if size > last else 1.0)


@dataclass(frozen=True, slots=True)
class NewMemory:
    """The cost of tensors whose memory comes from the operating system, which clears each page at its first use."""

    rate: Figure
    """Bytes per second that one thread maps and clears."""
    least: int
    """Bytes of the smallest tensor whose memory the allocator returns to the system when the tensor is freed."""
    threads: int
    """Threads of a process that map pages at the same time; further ones wait for locks of the system."""

    def seconds(self, sizes: Iterable[int], threads: int) -> float:
        """Return the seconds to map and clear new tensors, given their bytes and the threads that write them."""
        size = sum(size for size in sizes if size >= self.least)
        return size / (self.rate.value * min(threads, self.threads))


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the configuration that measured times are valid for."""

    processor: str
    """The name of the processor."""
    threads: int
    """Threads that PyTorch computes with."""
    torch: str
    """The version of PyTorch."""
    instructions: str
    """The instruction set that its kernels use, such as ``AVX512``."""

    def __str__(self) -> str:
        return f"{self.processor}, {self.threads} thread(s), torch {self.torch}, {self.instructions}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measurements of :func:`~fx.simulation.calibration.calibrate` on one machine."""

    machine: Machine
    """The machine."""
    products: Mapping[str, Surface]
    """For each kind of product, the binary logarithm of the seconds per floating-point operation, by sizes."""
    operators: Mapping[str, Curve]
    """For each timed operator, the seconds of a call by the bytes that it touches, launch included."""
    launches: Mapping[str, float]
    """For each kind of product, the seconds of the smallest one."""
    typical: Curve
    """Seconds of a call by bytes for operators that were not timed: the median of those timed at several sizes."""
    unknown: float
    """Relative standard deviation of operators that were not timed."""
    longer: float = 1.0
    """The time of whole programs divided by the sum of their kernels, timed alone, and the Python between them."""
    measured: float = 0.05
    """Relative standard deviation of whole programs if all their kernels are measured."""


@dataclass(frozen=True, slots=True)
class Device:
    """A processor or an accelerator: its rates, and the cost of a call."""

    name: str
    """The name in reports."""
    kind: Literal["cpu", "cuda"]
    """PyTorch's type of the device. An accelerator works while its host launches the next kernels."""
    arithmetic: Mapping[torch.dtype, Figure]
    """Peak rate of products in floating-point operations per second, by the dtype of the operands."""
    bandwidth: Curve
    """Bytes per second by reuse distance, the bytes touched between two uses of the same ones: caches, then memory."""
    bandwidth_source: str
    """The source of ``bandwidth``."""
    memory: Figure
    """Bytes per second of its main memory."""
    capacity: Figure
    """Bytes of its memory."""
    launch: Figure
    """Seconds to launch one kernel."""
    efficiency: Figure
    """Share of the peak rate that large products reach."""
    fill: Figure
    """Seconds until a kernel works at its full rate."""
    link: Figure
    """Bytes per second to another device of the same kind, in one direction."""
    convolutions: Mapping[torch.dtype, Figure] = field(default_factory=dict[torch.dtype, Figure])
    """The peak rate of convolutions by dtype, if it differs from that of matrix products."""
    overheads: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of Python around the kernels, by opcode (``call_module`` and so on) and by module or function."""
    cores: int = 1
    """The number of cores that the rates are for."""
    core_bandwidth: float | None = None
    """Bytes per second that one core alone gets from memory; None if it gets the full bandwidth."""
    turbo: Figure = field(default_factory=lambda: Figure(1.0, "one clock for any number of cores", 0.0))
    """The highest clock of one core, while the others are idle, divided by the clock of all cores."""
    new_memory: NewMemory | None = None
    """The cost of new memory; None if the allocator keeps the memory of freed tensors."""
    fork: Figure = field(default_factory=lambda: Figure(0.0, "one thread launches each kernel", 0.0))
    """Seconds for each core that a kernel uses to start and to join its thread."""
    common: float = 0.1
    """Relative standard deviation of whole programs that remains if all assumptions hold."""
    calibration: Calibration | None = None
    """The measurements on it, if it was calibrated."""

    def limited_to(self, cores: int) -> Device:
        """Return this device for a program that uses only ``cores`` of its cores.

        These run at a clock between that of all cores and the highest one for their number.

        Raises:
            AnalysisError: it does not have that many cores, or was measured, which fixes the number of threads.
        """
        if self.calibration is not None:
            raise AnalysisError(
                f"{self.name} was measured with {self.calibration.machine.threads} thread(s)",
                remedy="set torch.set_num_threads and calibrate() again",
            )
        if not 1 <= cores <= self.cores:
            raise AnalysisError(
                f"{self.name} has {self.cores} processor(s), not {cores}", remedy="ask for at most those"
            )
        if cores == self.cores:
            return self
        share = cores / self.cores
        reached = self.bandwidth.values[-1]
        memory = min(reached, cores * (self.core_bandwidth or reached))
        values = [max(value * share, memory) for value in self.bandwidth.values]
        values[-1] = memory
        # The other cores may be idle, or busy with other programs: the clock is between its bounds.
        highest = self.turbo.value ** (1 - math.log(cores) / math.log(self.cores))
        arithmetic, convolutions = (
            {
                dtype: replace(
                    figure,
                    value=figure.value * share * math.sqrt(highest),
                    spread=math.hypot(figure.spread, math.log(highest) / math.sqrt(12)),
                )
                for dtype, figure in rates.items()
            }
            for rates in (self.arithmetic, self.convolutions)
        )
        return replace(
            self,
            name=f"{self.name}, {cores} of {self.cores} processors",
            arithmetic=arithmetic,
            convolutions=convolutions,
            turbo=replace(self.turbo, value=1.0),
            memory=replace(self.memory, value=memory),
            bandwidth=replace(self.bandwidth, values=tuple(values)),
            cores=cores,
        )

    def rate(self, dtype: torch.dtype | None, *, convolution: bool = False) -> Figure:
        """Return the peak rate of products of a dtype; for an unlisted dtype, that of the nearest wider one."""
        figures = {**self.arithmetic, **(self.convolutions if convolution else {})}
        if dtype in figures:
            return figures[dtype]
        width = 4 if dtype is None else dtype.itemsize
        wider = sorted((other.itemsize, place) for place, other in enumerate(figures) if other.itemsize >= width)
        place = wider[0][1] if wider else 0
        nearest = list(figures.values())[place]
        return replace(nearest, spread=max(nearest.spread, 0.5))


def this_machine() -> Machine:
    """Return the machine that runs this process, with PyTorch's current number of threads."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(_processor(), torch.get_num_threads(), str(torch.__version__), str(capability))


def refuse_other_machine(machine: Machine, where: str, remedy: str = "calibrate() here, into another file") -> None:
    """Check that times were measured on this machine, with its current configuration.

    Raises:
        AnalysisError: they were measured on another machine or with another configuration.
    """
    now = this_machine()
    if machine != now:
        raise AnalysisError(
            "times that were measured on another machine do not hold here",
            where=where,
            value=f"measured on {machine}",
            why=f"this is {now}",
            remedy=remedy,
        )


def write_json(path: Path, data: object) -> None:
    """Write a file atomically, and create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(file.name, path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = named.get("model name") or platform.processor() or platform.machine()
    stepping = [named[name] for name in ("cpu family", "model") if name in named]
    return f"{model} ({' '.join(stepping)})" if stepping else model


def steps(levels: Sequence[tuple[float, float]], memory: float) -> Curve:
    """Return a curve of bandwidth, given the size and bandwidth of each cache and the bandwidth of the memory."""
    sizes, values = list[float](), list[float]()
    for size, bandwidth in levels:
        sizes += [size / 2, size]
        values += [bandwidth, (bandwidth * memory) ** 0.5 if size == levels[-1][0] else bandwidth]
    if not levels:
        return Curve((1.0,), (memory,))
    return Curve((*sizes, 2 * sizes[-1]), (*values, memory))
