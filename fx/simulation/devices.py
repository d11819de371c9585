"""What is known of a device that programs run on, each figure with its source (paper, section 6.3)."""

from __future__ import annotations

import bisect
import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from fx.errors import AnalysisError
from fx.simulation.product_sizes import Surface


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with where it is from."""

    value: float
    """The number, in the unit of the field that it stands in."""
    source: str
    """A public document, ``"measured"``, or the assumption that it is."""
    spread: float = 0.1
    """Relative standard deviation: how far what programs reach is from it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A positive quantity that depends on a size, known at some sizes; straight between them on logarithmic axes.

    >>> round(Curve((1.0, 100.0), (10.0, 1000.0)).at(10.0), 6)
    100.0
    """

    sizes: tuple[float, ...]
    """The sizes at which it is known, ascending."""
    values: tuple[float, ...]
    """What it is there."""

    def at(self, size: float) -> float:
        """Its value at ``size``: of the nearest end outside of the known sizes."""
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
        """Its value at ``size``; above the known sizes in proportion to the size."""
        last = self.sizes[-1]
        return self.at(size) * (size / last if size > last else 1.0)


@dataclass(frozen=True, slots=True)
class Machine:
    """What measured times hold for."""

    processor: str
    """The name of the processor."""
    threads: int
    """Threads that PyTorch computes with."""
    torch: str
    """The version of PyTorch."""
    instructions: str
    """The instructions that its kernels use, as ``AVX512``."""

    def __str__(self) -> str:
        return f"{self.processor}, {self.threads} thread(s), torch {self.torch}, {self.instructions}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What :func:`~fx.simulation.calibration.calibrate` measured on one machine."""

    machine: Machine
    """The machine."""
    products: Mapping[str, Surface]
    """Logarithm of the seconds of a floating-point operation by the sizes of a product, for each kind of product."""
    operators: Mapping[str, Curve]
    """Seconds of a call by the bytes that it touches, for operators that were timed; their launch is in it."""
    launches: Mapping[str, float]
    """Seconds of the smallest product, for each kind of product."""
    typical: Curve
    """The same for an operator that was not: the median of those that work on each element."""
    unknown: float
    """Relative standard deviation of operators that were not timed."""
    longer: float = 1.0
    """How many times as long whole programs take as their kernels, timed alone, and the Python between them."""
    measured: float = 0.05
    """Relative standard deviation of whole programs whose kernels were all measured."""


@dataclass(frozen=True, slots=True)
class Device:
    """A processor or an accelerator: its rates, and what one call costs."""

    name: str
    """What reports call it."""
    kind: Literal["cpu", "cuda"]
    """Where PyTorch runs programs on it. An accelerator works while its host launches the next kernels."""
    arithmetic: Mapping[torch.dtype, Figure]
    """Greatest rate of products in floating-point operations a second, by the dtype of the operands."""
    bandwidth: Curve
    """Bytes a second by how many other bytes are touched before the same ones are needed again: caches, then memory."""
    bandwidth_source: str
    """Where that is from."""
    memory: Figure
    """Bytes a second of its main memory."""
    capacity: Figure
    """Bytes of its memory."""
    launch: Figure
    """Seconds to launch one kernel."""
    efficiency: Figure
    """Share of the greatest rate that large products reach."""
    fill: Figure
    """Seconds until a kernel works at its full rate."""
    link: Figure
    """Bytes a second from and to another device of the kind, one way."""
    convolutions: Mapping[torch.dtype, Figure] = field(default_factory=dict[torch.dtype, Figure])
    """The rate of convolutions, where it is another one than that of matrix products."""
    overheads: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of Python by opcode, beside its kernels: ``call_module`` and so on."""
    cores: int = 1
    """Processors in it that the rates are of."""
    core_bandwidth: float | None = None
    """Bytes a second that one of its processors gets from memory alone; None: all of it."""
    common: float = 0.1
    """Relative standard deviation of whole programs that is left when all else is right."""
    calibration: Calibration | None = None
    """What was measured on it, where something was."""

    def limited_to(self, cores: int) -> Device:
        """The device where a program uses that many of its processors.

        Raises:
            AnalysisError: it has fewer, or its times were measured with another number of threads.
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
        share = cores / self.cores
        memory = min(self.memory.value, cores * (self.core_bandwidth or self.memory.value))
        values = [max(value * share, memory) for value in self.bandwidth.values]
        values[-1] = memory
        return replace(
            self,
            name=f"{self.name}, {cores} of {self.cores} processors",
            arithmetic={dtype: replace(one, value=one.value * share) for dtype, one in self.arithmetic.items()},
            convolutions={dtype: replace(one, value=one.value * share) for dtype, one in self.convolutions.items()},
            memory=replace(self.memory, value=memory),
            bandwidth=replace(self.bandwidth, values=tuple(values)),
            cores=cores,
        )

    def rate(self, dtype: torch.dtype | None, *, convolution: bool = False) -> Figure:
        """The greatest rate of products of a dtype; of one that is not listed, that of the nearest wider one."""
        known = {**self.arithmetic, **(self.convolutions if convolution else {})}
        if dtype in known:
            return known[dtype]
        width = 4 if dtype is None else dtype.itemsize
        wider = sorted((one.itemsize, place) for place, one in enumerate(known) if one.itemsize >= width)
        place = wider[0][1] if wider else 0
        found = list(known.values())[place]
        return replace(found, spread=max(found.spread, 0.5))


def this_machine() -> Machine:
    """Name the machine that runs this, with the number of threads that PyTorch has now."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(_processor(), torch.get_num_threads(), str(torch.__version__), str(capability))


def refuse_other_machine(machine: Machine, where: str, remedy: str = "calibrate() here, into another file") -> None:
    """Raise an error if times were measured on another machine than this one, as it is now.

    Raises:
        AnalysisError: they were.
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
    """Write a file that is there whole or not at all, in a folder that is made if need be."""
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
    """A curve of bandwidth from sizes of caches with their bandwidths, and that of the memory behind them."""
    sizes, values = list[float](), list[float]()
    for size, bandwidth in levels:
        sizes += [size / 2, size]
        values += [bandwidth, (bandwidth * memory) ** 0.5 if size == levels[-1][0] else bandwidth]
    if not levels:
        return Curve((1.0,), (memory,))
    return Curve((*sizes, 2 * sizes[-1]), (*values, memory))
