"""Calibration: rates and overheads of this machine, measured in seconds, cached on disk, refused on other machines."""

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
"""The version of the file format."""
_LEAST_COMMON = 0.12
"""Lower bound of the relative standard deviation of whole programs: agreement of six programs may be chance."""
_LEAST_MEASURED = 0.08
"""The same bound for programs whose kernels are all measured."""
_MEASURED = "measured on this machine"
_READS = tuple(1 << power for power in range(14, 29, 2))
"""Sizes in bytes that are read repeatedly to measure the bandwidth."""


def calibrate(path: str | Path | None = None) -> Device:
    """Measure this machine with PyTorch's current number of threads; this takes half a minute.

    Args:
        path: a file for the result. If it exists, it is read instead.

    Returns:
        The machine as a device for :func:`~fx.simulation.run_times.simulate`.

    Raises:
        AnalysisError: the file is from another machine, number of threads or version of PyTorch.
    """
    if path is not None and Path(path).exists():
        return load_device(path)
    device = _measure()
    if path is not None:
        save_device(device, path)
    return device


def calibrated_here(folder: str | Path) -> Device:
    """Return this machine as a device: read from a folder, or measured the first time (:func:`calibrate`).

    The folder has one file for each machine, number of threads and version of PyTorch.
    """
    return calibrate(file_of_machine(folder, "machine"))


def file_of_machine(folder: str | Path, kind: str) -> Path:
    """Return the file for one kind of measurement on this machine, with its threads and version of PyTorch."""
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
    """Return for each operator that is not a product the seconds of a call by bytes."""
    times: dict[str, dict[float, list[float]]] = {}
    for call, seconds in timed:
        if product_sizes(call) is None:
            size = float(max(sum(touched.size for touched in call.touched), 1))
            times.setdefault(family_of(call), {}).setdefault(size, []).append(seconds)
    return {name: _curve({size: statistics.median(of) for size, of in sizes.items()}) for name, sizes in times.items()}


def _curve(points: Mapping[float, float]) -> Curve:
    """Return a nondecreasing curve through points."""
    sizes = sorted(points)
    return Curve(tuple(sizes), tuple(itertools.accumulate((points[size] for size in sizes), max)))


def _typical(operators: Mapping[str, Curve]) -> tuple[Curve, float]:
    """Return the median curve of operators timed at several sizes, and their standard deviation from it, in logs."""
    curves = [curve for curve in operators.values() if len(curve.sizes) > 2]
    sizes = [float(1 << power) for power in range(3, 25)]
    typical = _curve({size: statistics.median(curve.beyond(size) for curve in curves) for size in sizes})
    logs = [math.log(curve.beyond(size) / typical.at(size)) for curve in curves for size in (2.0**12, 2.0**17, 2.0**22)]
    return typical, statistics.pstdev(logs)


def _products(timed: Iterable[tuple[KernelCall, float]], launches: Mapping[str, float]) -> dict[str, Surface]:
    """Return for each kind of product the binary logarithm of the seconds per operation, by sizes."""
    by_kind: dict[str, list[tuple[ProductSizes, int, float]]] = {}
    for call, seconds in timed:
        if (sizes := product_sizes(call)) is not None:
            by_kind.setdefault(sizes.kind, []).append((sizes, call.work.flops, seconds))
    surfaces: dict[str, Surface] = {}
    for kind, timings in by_kind.items():
        least = min(seconds / flops for _, flops, seconds in timings) / 1.05  # the launch is subtracted below
        surfaces[kind] = Surface.fit([
            (sizes.features, math.log2(max((seconds - launches[kind]) / flops, least)))
            for sizes, flops, seconds in timings
        ])  # fmt: skip
    return surfaces


def _rates() -> Iterable[tuple[torch.dtype, float]]:
    """Yield the rate of a large product of each dtype, in operations per second."""
    for dtype, size in ((torch.float32, 512), (torch.float64, 384), (torch.bfloat16, 384)):
        first, second = torch.rand(size, size).to(dtype), torch.rand(size, size).to(dtype)
        seconds = seconds_of(lambda first=first, second=second: torch.mm(first, second))
        yield dtype, 2 * size**3 / seconds


def _bandwidth() -> Curve:
    """Return a nonincreasing curve of bytes per second by the bytes that are read repeatedly."""
    whole = torch.ones(_READS[-1] // 4)
    parts = [whole[: size // 4] for size in _READS]
    rates = [4 * part.numel() / seconds_of(lambda part=part: part.sum(), longest=0.1) for part in parts]
    return Curve(tuple(map(float, _READS)), tuple(max(rates[place:]) for place in range(len(rates))))


def _memory() -> float:
    """Return the bytes of memory of this machine, or infinity if the system does not report them."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _checked(device: Device) -> Device:
    """Return the device with uncertainties from the errors on whole programs, which nothing was fitted to."""
    roofline, measured = Roofline(device), MeasuredTimes(device)
    by_roofline, by_kernels, expected = list[float](), list[float](), list[float]()
    for make in CHECKS:
        module, tensor = make()
        program = symbolic_trace(module.eval())
        calls = record_calls(program, tensor)
        seconds = seconds_of(lambda program=program, tensor=tensor: program(tensor), longest=0.2)
        estimated = estimate_calls(calls, device, roofline)
        expected.append(estimated.spread**2 - device.common**2)
        by_roofline.append(math.log(seconds / estimated.seconds))
        by_kernels.append(math.log(seconds / estimate_calls(calls, device, measured).seconds))
    longer = max(statistics.median(by_kernels), 0.0)
    roofline_errors, kernel_errors = ([log - longer for log in logs] for logs in (by_roofline, by_kernels))
    calibration = replace(
        cast("Calibration", device.calibration),
        longer=math.exp(longer),
        measured=max(_deviation(kernel_errors), _LEAST_MEASURED),
    )
    unexplained = _deviation(roofline_errors) ** 2 - statistics.median(expected)
    return replace(device, common=math.sqrt(max(unexplained, _LEAST_COMMON**2)), calibration=calibration)


def _deviation(logs: Sequence[float]) -> float:
    """Return the standard deviation of log ratios around 0, from their median, which is robust to an outlier."""
    return 1.48 * statistics.median(map(abs, logs))


def save_device(device: Device, path: str | Path) -> None:
    """Write a calibrated device to a file, whole or not at all.

    Raises:
        AnalysisError: the device was not calibrated.
    """
    if device.calibration is None:
        raise AnalysisError(f"{device.name} was not calibrated", remedy="save what calibrate() returns")
    write_json(Path(path), {"format": FORMAT, "device": _as_data(device)})


def load_device(path: str | Path) -> Device:
    """Read a calibrated device from a file.

    Raises:
        AnalysisError: the file is missing or invalid, or from another machine, number of threads or version of PyTorch.
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
    """Convert dataclasses to lists and dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {attribute.name: _as_data(getattr(value, attribute.name)) for attribute in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_data(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _from_data(kind: Any, data: Any) -> Any:
    """Convert lists and dicts to the dataclasses and containers that an annotation names."""
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return cast("Any", kind)(
            **{attribute.name: _from_data(kinds[attribute.name], data[attribute.name]) for attribute in fields(kind)}
        )
    parts = get_args(kind)
    if get_origin(kind) is abc.Mapping:
        return {_from_data(parts[0], key): _from_data(parts[1], entry) for key, entry in data.items()}
    if get_origin(kind) is tuple:
        return tuple(_from_data(parts[0], entry) for entry in data)
    if type(None) in parts:
        return None if data is None else _from_data(parts[0], data)
    if kind is torch.dtype:
        return getattr(torch, data.removeprefix("torch."))
    return kind(data) if kind in (int, float, str) else data
