"""What this machine is: rates and overheads, measured in seconds, kept on disk, refused on another machine."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import statistics
from collections import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import torch

from fx.analysis.kernel_calls import KernelCall, record_calls
from fx.capture.tracer import symbolic_trace
from fx.errors import AnalysisError
from fx.simulation.devices import (
    Calibration,
    Curve,
    Device,
    Figure,
    refuse_other_machine,
    this_machine,
    write_json,
)
from fx.simulation.kernel_times import Roofline, family_of
from fx.simulation.measured_times import MeasuredTimes, Replay, seconds_of
from fx.simulation.probes import CHECKS, operator_probes, product_probes, smallest_products
from fx.simulation.product_sizes import ProductSizes, Surface, product_sizes
from fx.simulation.python_overheads import measure_overheads
from fx.simulation.run_times import estimate_calls

FORMAT = 4
"""The version of the file."""
_LEAST_COMMON = 0.12
"""Relative standard deviation of whole programs that is never undercut: what six programs agree on may be chance."""
_LEAST_MEASURED = 0.08
"""The same of programs whose kernels are all measured."""
_MEASURED = "measured on this machine"
_READS = tuple(1 << power for power in range(14, 29, 2))
"""Bytes that are read again and again to find the bandwidth."""


def calibrate(path: str | Path | None = None) -> Device:
    """Measure this machine, with the number of threads that PyTorch has now (half a minute).

    Args:
        path: a file to keep the result in. If it is there and of this machine, it is read instead.

    Returns:
        The machine as a device for :func:`~fx.simulation.run_times.simulate`.

    Raises:
        AnalysisError: the file is of another machine, another number of threads or another version of PyTorch.
    """
    if path is not None and Path(path).exists():
        return load_device(path)
    device = _measure()
    if path is not None:
        save_device(device, path)
    return device


def calibrated_here(folder: str | Path) -> Device:
    """Return this machine as a device: read from a folder, or measured into it the first time (:func:`calibrate`).

    Each machine, number of threads and version of PyTorch has a file of its own there.
    """
    return calibrate(file_of_machine(folder, "machine"))


def file_of_machine(folder: str | Path, kind: str) -> Path:
    """The file in a folder for what is measured on this machine, with its threads and version of PyTorch."""
    digest = hashlib.sha256(str(this_machine()).encode()).hexdigest()[:12]
    return Path(folder, f"{kind}-{FORMAT}-{digest}.json")


def _measure() -> Device:
    machine, replay = this_machine(), Replay()
    with torch.no_grad():
        timed = [(call, replay.seconds(call)) for call in (*operator_probes(), *product_probes())]
        operators = _operators(timed)
        launch = statistics.median(curve.values[0] for curve in operators.values())
        rates = {dtype: Figure(rate, _MEASURED, 0.05) for dtype, rate in _rates()}
        bandwidth = _bandwidth()
        launches = {sizes.kind: replay.seconds(call) for call in smallest_products() if (sizes := product_sizes(call))}
        products = _products(timed, launches)
        spread = statistics.median(surface.spread for surface in products.values()) * math.log(2)
        calibration = Calibration(machine, products, operators, launches, *_typical(operators))
        device = Device(
            name="this machine",
            kind="cpu",
            arithmetic=rates,
            bandwidth=bandwidth,
            bandwidth_source=_MEASURED,
            memory=Figure(bandwidth.values[-1], _MEASURED, 0.1),
            capacity=Figure(_memory(), _MEASURED, 0.0),
            launch=Figure(launch, _MEASURED, 0.15),
            efficiency=Figure(1.0, "in the measured rates", spread),
            fill=Figure(0.0, "in the launch", 0.0),
            link=Figure(bandwidth.values[-1] / 2, "assumption: copied through memory", 0.3),
            overheads=dict(measure_overheads(replay)),
            cores=machine.threads,
            common=0.05,
            calibration=calibration,
        )
        return _checked(device)


def _operators(timed: Iterable[tuple[KernelCall, float]]) -> dict[str, Curve]:
    """Seconds by bytes, for each operator that is not a product."""
    found: dict[str, dict[float, list[float]]] = {}
    for call, seconds in timed:
        if product_sizes(call) is None:
            size = float(max(sum(one.size for one in call.touched), 1))
            found.setdefault(family_of(call), {}).setdefault(size, []).append(seconds)
    return {name: _curve({size: statistics.median(of) for size, of in sizes.items()}) for name, sizes in found.items()}


def _curve(points: Mapping[float, float]) -> Curve:
    """A curve through points, which does not fall."""
    sizes = sorted(points)
    return Curve(tuple(sizes), tuple(itertools.accumulate((points[size] for size in sizes), max)))


def _typical(operators: Mapping[str, Curve]) -> tuple[Curve, float]:
    """The median curve of the operators that were timed at several sizes, and how far they are from it, in logs."""
    curves = [curve for curve in operators.values() if len(curve.sizes) > 2]
    sizes = [float(1 << power) for power in range(3, 25)]
    typical = _curve({size: statistics.median(curve.beyond(size) for curve in curves) for size in sizes})
    logs = [math.log(curve.beyond(size) / typical.at(size)) for curve in curves for size in (2.0**12, 2.0**17, 2.0**22)]
    return typical, statistics.pstdev(logs)


def _products(timed: Iterable[tuple[KernelCall, float]], launches: Mapping[str, float]) -> dict[str, Surface]:
    """Seconds of an operation by the sizes of products, as a power of two."""
    by_kind: dict[str, list[tuple[ProductSizes, int, float]]] = {}
    for call, seconds in timed:
        if (sizes := product_sizes(call)) is not None:
            by_kind.setdefault(sizes.kind, []).append((sizes, call.work.flops, seconds))
    surfaces: dict[str, Surface] = {}
    for kind, found in by_kind.items():
        least = min(seconds / flops for _, flops, seconds in found) / 1.05  # with the launch, which is taken off below
        surfaces[kind] = Surface.fit([
            (sizes.features, math.log2(max((seconds - launches[kind]) / flops, least)))
            for sizes, flops, seconds in found
        ])  # fmt: skip
    return surfaces


def _rates() -> Iterable[tuple[torch.dtype, float]]:
    """The rate of a large product of each dtype."""
    for dtype, size in ((torch.float32, 512), (torch.float64, 384), (torch.bfloat16, 384)):
        first, second = torch.rand(size, size).to(dtype), torch.rand(size, size).to(dtype)
        seconds = seconds_of(lambda first=first, second=second: torch.mm(first, second))
        yield dtype, 2 * size**3 / seconds


def _bandwidth() -> Curve:
    """Bytes a second by how many bytes are read in turn; a curve that does not rise."""
    whole = torch.ones(_READS[-1] // 4)
    parts = [whole[: size // 4] for size in _READS]
    rates = [4 * part.numel() / seconds_of(lambda part=part: part.sum(), longest=0.1) for part in parts]
    return Curve(tuple(map(float, _READS)), tuple(max(rates[place:]) for place in range(len(rates))))


def _memory() -> float:
    """Bytes of memory of this machine, where the system says it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _checked(device: Device) -> Device:
    """The device with what is left of the uncertainty: how far whole programs, which nothing was fitted to, are off."""
    roofline, measured = Roofline(device), MeasuredTimes(device)
    by_roofline, by_kernels, expected = list[float](), list[float](), list[float]()
    for make in CHECKS:
        module, given = make()
        program = symbolic_trace(module.eval())
        calls = record_calls(program, given)
        seconds = seconds_of(lambda program=program, given=given: program(given), longest=0.2)
        estimated = estimate_calls(calls, device, roofline)
        expected.append(estimated.spread**2 - device.common**2)
        by_roofline.append(math.log(seconds / estimated.seconds))
        by_kernels.append(math.log(seconds / estimate_calls(calls, device, measured).seconds))
    longer = max(statistics.median(by_kernels), 0.0)
    left, known = ([one - longer for one in found] for found in (by_roofline, by_kernels))
    calibration = replace(
        cast("Calibration", device.calibration),
        longer=math.exp(longer),
        measured=max(_deviation(known), _LEAST_MEASURED),
    )
    unexplained = _deviation(left) ** 2 - statistics.median(expected)
    return replace(device, common=math.sqrt(max(unexplained, _LEAST_COMMON**2)), calibration=calibration)


def _deviation(logs: Sequence[float]) -> float:
    """The standard deviation of logarithms of ratios around 0, by their median, which a single one does not move."""
    return 1.48 * statistics.median(map(abs, logs))


def save_device(device: Device, path: str | Path) -> None:
    """Write a calibrated device to a file, whole or not at all.

    Raises:
        AnalysisError: nothing was measured on the device.
    """
    if device.calibration is None:
        raise AnalysisError(f"{device.name} was not calibrated", remedy="save what calibrate() returns")
    write_json(Path(path), {"format": FORMAT, "device": _as_data(device)})


def load_device(path: str | Path) -> Device:
    """Read a calibrated device from a file.

    Raises:
        AnalysisError: the file is none, or of another machine, another number of threads or another version of PyTorch.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, not {FORMAT}")
        device: Device = _from_data(Device, data["device"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} is not a calibration that can be read",
            why=f"{type(error).__name__}: {error}",
            remedy="remove it, and calibrate() again",
        ) from error
    refuse_other_machine(cast("Calibration", device.calibration).machine, str(path))
    return device


def _as_data(value: Any) -> Any:
    """Records as lists and dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _as_data(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_data(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _from_data(kind: Any, data: Any) -> Any:
    """Lists and dicts as the records and containers that an annotation names."""
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return cast("Any", kind)(**{one.name: _from_data(kinds[one.name], data[one.name]) for one in fields(kind)})
    parts = get_args(kind)
    if get_origin(kind) is abc.Mapping:
        return {_from_data(parts[0], key): _from_data(parts[1], one) for key, one in data.items()}
    if get_origin(kind) is tuple:
        return tuple(_from_data(parts[0], one) for one in data)
    if type(None) in parts:
        return None if data is None else _from_data(parts[0], data)
    if kind is torch.dtype:
        return getattr(torch, data.removeprefix("torch."))
    return kind(data) if kind in (int, float, str) else data
