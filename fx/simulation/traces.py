"""Times of kernels read from a Chrome trace of ``torch.profiler``, recorded on any machine."""

from __future__ import annotations

import ast
import gzip
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from fx.analysis.kernel_calls import KernelCall, Operand
from fx.errors import AnalysisError
from fx.simulation.devices import Device
from fx.simulation.kernel_times import KernelTime, Roofline

IN_TRACE, BETWEEN = "times in the trace", "sizes between those in the trace"
"""Two assumptions: kernels take as long as in the trace; at other sizes, their time grows with their work."""
_SPREAD, _BETWEEN_SPREAD = 0.07, 0.15
_OTHER_NAMES = {
    "aten::native_batch_norm": (
        "aten::cudnn_batch_norm",
        "aten::_native_batch_norm_legit_no_training",
        "aten::batch_norm",
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
    ),
    "aten::native_layer_norm": ("aten::layer_norm",),
    "aten::mkldnn_rnn_layer": ("aten::_cudnn_rnn",),
}
"""Other names of an operator in traces, depending on the device."""
_MATRIX = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_CONVOLUTIONS = frozenset({"aten::convolution", "aten::_convolution"})

Dims: TypeAlias = "tuple[Any, ...]"
"""The sizes of each argument: those of a tensor, of each tensor in a list, or an empty tuple for other values."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """The calls in a trace of one operator on tensors of the same sizes."""

    name: str
    """The operator, such as ``aten::addmm``."""
    dims: Dims
    """Sizes of its arguments."""
    concrete: tuple[str, ...]
    """Its other arguments, as text in the trace."""
    seconds: float
    """Median seconds on the device."""
    launch: float
    """Median seconds on the host, if kernels run on another device; else 0."""
    count: int
    """The number of calls."""

    @property
    def work(self) -> float:
        """Work that its time is proportional to, in a unit that calls of one operator share."""
        return _work(self.name, self.dims, self.concrete)


@dataclass(slots=True)
class _Event:
    name: str
    args: Mapping[str, Any]
    start: float
    end: float
    kernels: float = 0.0
    inside: list[_Event] = field(default_factory=list)


class TraceTimes:
    """A source of times from a trace, interpolated for sizes that the trace lacks.

    The roofline of the device estimates operators that the trace lacks.
    """

    name = "trace"

    def __init__(self, path: str | Path, device: Device) -> None:
        """Read the times of a trace.

        Args:
            path: a file from ``torch.profiler.profile(record_shapes=True)`` and its ``export_chrome_trace``; it may be
                compressed with gzip.
            device: the device that it was recorded on.

        Raises:
            AnalysisError: it cannot be read, or it was recorded without shapes.
        """
        self.device = device
        self.calls = read_trace(path)
        self._roofline = Roofline(device)
        self._exact: dict[tuple[str, Dims], list[TracedCall]] = {}
        self._by_name: dict[str, list[TracedCall]] = {}
        for call in self.calls:
            self._exact.setdefault((call.name, call.dims), []).append(call)
            self._by_name.setdefault(call.name, []).append(call)
        self.missing: set[str] = set()
        """The requested operators that the trace lacks."""

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that remains if all assumptions hold."""
        return _SPREAD

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return the time of a call: from the trace, interpolated between two calls in it, or by the roofline."""
        own = str(call.func._schema.name)
        dims, concrete = _dims_of(call), _concrete_of(call)
        names = (own, *_OTHER_NAMES.get(own, ()))
        for name in names:
            for width in (dims, dims[:1]) if name != own else (dims,):
                matches = self._exact.get((name, width), [])
                if not matches and name != own:  # the other operators take more arguments, but the same first one
                    matches = [traced for traced in self._by_name.get(name, []) if traced.dims[:1] == width[:1]]
                if matches:
                    best = max(matches, key=lambda match: _alike(match.concrete, concrete))
                    return KernelTime(best.seconds, IN_TRACE, _SPREAD, best.launch)
        for name in names:
            if matches := self._by_name.get(name):
                return _between(matches, _work(own, dims, concrete))
        if call.cost is not None:
            self.missing.add(own)
        return self._roofline.time_of(call)


def read_trace(path: str | Path) -> list[TracedCall]:
    """Read the operators of a Chrome trace, each with its sizes and median time.

    Raises:
        AnalysisError: it cannot be read, or it was recorded without shapes.
    """
    try:
        raw = Path(path).read_bytes()
        data: Any = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        entries = data["traceEvents"] if isinstance(data, dict) else data
        complete = [event for event in entries if isinstance(event, dict) and event.get("ph") == "X"]
        calls = _timed(complete)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} is not a trace that can be read",
            why=f"{type(error).__name__}: {error}",
            remedy="write one with torch.profiler.profile(record_shapes=True) and its export_chrome_trace",
        ) from error
    if not calls:
        raise AnalysisError(
            f"{path} has no operators with the sizes of their arguments",
            why=f"there are {len(complete)} events, and none of category cpu_op with Input Dims",
            remedy="record it with torch.profiler.profile(record_shapes=True)",
        )
    return calls


def _timed(entries: Sequence[Mapping[str, Any]]) -> list[TracedCall]:
    events = [
        _Event(
            str(entry["name"]), entry.get("args") or {}, float(entry["ts"]), float(entry["ts"]) + float(entry["dur"])
        )
        for entry in entries
        if entry.get("cat") == "cpu_op"
    ]
    kernels = [entry for entry in entries if entry.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    _nest(events)
    by_id = {event.args.get("External id"): event for event in events}
    for kernel in kernels:
        event = by_id.get((kernel.get("args") or {}).get("External id"))
        if event is not None:
            event.kernels += float(kernel["dur"])
    times: dict[tuple[str, Dims, tuple[str, ...]], list[tuple[float, float]]] = {}
    for event in events:
        if "Input Dims" in event.args:
            key = event.name, _frozen(event.args["Input Dims"]), tuple(map(str, event.args.get("Concrete Inputs", ())))
            host = (event.end - event.start) * 1e-6
            seconds = _of_device(event) * 1e-6
            # In a trace without kernels all ran on the CPU, where an operator takes the time of its event.
            times.setdefault(key, []).append((seconds, host) if kernels else (host, 0.0))
    return [
        TracedCall(
            *key, statistics.median(seconds for seconds, _ in samples), statistics.median(host for _, host in samples),
            len(samples),
        )
        for key, samples in times.items()
    ]  # fmt: skip


def _nest(events: list[_Event]) -> None:
    """Nest each event in the innermost event that contains it."""
    going: list[_Event] = []
    for event in sorted(events, key=lambda entry: (entry.start, -entry.end)):
        while going and going[-1].end < event.end:
            going.pop()
        if going:
            going[-1].inside.append(event)
        going.append(event)


def _of_device(event: _Event) -> float:
    """Return the microseconds of the kernels that an event and its nested events launched."""
    return event.kernels + sum(map(_of_device, event.inside))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _dims_of(call: KernelCall) -> Dims:
    """Return the sizes of a call's arguments in the format of a trace: one entry per argument of the operator."""
    return tuple(map(_dims, _arguments(call)))


def _arguments(call: KernelCall) -> list[Any]:
    """Return the arguments by position, with defaults."""
    arguments = list(call.args)
    for argument in call.func._schema.arguments[len(call.args) :]:
        arguments.append(call.kwargs.get(argument.name, argument.default_value))
    return arguments


def _dims(value: Any) -> Any:
    if isinstance(value, Operand):
        return value.shape
    if isinstance(value, (tuple, list)) and value and all(isinstance(element, Operand) for element in value):
        return tuple(element.shape for element in cast("Iterable[Operand]", value))
    return ()


def _concrete_of(call: KernelCall) -> tuple[str, ...]:
    return tuple("" if argument is None or _dims(argument) != () else str(argument) for argument in _arguments(call))


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(text == other for text, other in zip(first, second, strict=False))


def _between(calls: Sequence[TracedCall], work: float) -> KernelTime:
    """Return the time for other work, interpolated linearly between its neighbours on logarithmic axes."""
    by_work: dict[float, list[TracedCall]] = {}
    for call in calls:
        by_work.setdefault(call.work, []).append(call)
    points = [
        (
            size,
            statistics.median(call.seconds for call in same_work),
            statistics.median(call.launch for call in same_work),
        )
        for size, same_work in sorted(by_work.items())
    ]
    below = [point for point in points if point[0] <= work]
    above = [point for point in points if point[0] >= work]
    if below and above:
        (low, seconds, launch), (high, most, _) = below[-1], above[0]
        share = math.log(work / low) / math.log(high / low) if high > low else 0.0
        between = math.exp(math.log(max(seconds, 1e-9)) * (1 - share) + math.log(max(most, 1e-9)) * share)
        return KernelTime(between, BETWEEN, _BETWEEN_SPREAD, launch)
    size, seconds, launch = (below[-1:] or above[:1])[0]
    ratio = work / size
    # Above the greatest size the time is proportional to the work. Below the smallest one at least a quarter of the
    # time remains, for the launch, whose share is unknown.
    return KernelTime(seconds * max(ratio, 0.25), BETWEEN, _BETWEEN_SPREAD + 0.1 * abs(math.log2(ratio)), launch)


def _work(name: str, dims: Dims, concrete: Sequence[str]) -> float:
    """Return the work of a call: multiply-adds of products and convolutions, else elements of the operands."""
    if name in _MATRIX:
        first, second = dims[_MATRIX[name]], dims[_MATRIX[name] + 1]
        return max(float(math.prod(first) * second[-1]), 1.0)
    if name in _CONVOLUTIONS and len(dims) > 1 and dims[1]:
        step = _step(concrete[3]) if len(concrete) > 3 else 1.0
        return max(float(math.prod(dims[0]) * math.prod(dims[1]) / max(dims[1][1], 1)) / step, 1.0)
    return max(float(sum(_elements(size) for size in dims)), 1.0)


def _elements(dims: Any) -> int:
    if dims and isinstance(dims[0], tuple):
        return sum(map(_elements, dims))
    return math.prod(dims) if dims else 0


def _step(text: str) -> float:
    """Return the positions of a convolution's operand per position of its result, given its strides as text."""
    try:
        value = ast.literal_eval(text)
        return float(math.prod(value)) if isinstance(value, (list, tuple)) else 1.0
    except (ValueError, SyntaxError, TypeError):
        return 1.0
