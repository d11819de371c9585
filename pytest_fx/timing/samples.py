"""A sample of a timing: the time of some calls of one program, here or in another process.

Processes of other revisions load this file by its path, so it imports little, and nothing that changes often.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_fx.timing.clock import CLOCK

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""

# Bound here: a timed program may replace these functions.
_Event, _synchronize = torch.cuda.Event, torch.cuda.synchronize


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of some calls of one program."""

    seconds: float
    """Seconds of all calls; on a GPU, seconds of the device."""
    wall: float
    """Wall-clock seconds in the meantime."""
    processor: float
    """Processor seconds of this process in the meantime."""
    calls: int
    """The number of calls."""
    host: float | None = None
    """On a GPU, seconds until all calls had launched their work."""


class SampledProgram(ABC):
    """A program that takes its samples itself, since it runs in another process."""

    @abstractmethod
    def sample(self, calls: Sequence[Call]) -> tuple[Sample, Any]:
        """Return the time of the calls, and the output of the last one."""


def sample_on_cpu(program: Callable[..., Any], calls: Sequence[Call]) -> tuple[Sample, Any]:
    """Return the time of the calls and the output of the last one; other outputs are freed at once."""
    *others, (args, kwargs) = calls
    wall, processor = CLOCK.wall, CLOCK.processor
    computed = processor()
    start = wall()
    for other_args, other_kwargs in others:
        program(*other_args, **other_kwargs)
    output = program(*args, **kwargs)
    seconds = wall() - start
    return Sample(seconds, seconds, processor() - computed, len(calls)), output


def sample_on_gpu(program: Callable[..., Any], calls: Sequence[Call]) -> tuple[Sample, Any]:
    """Return the time of the calls: seconds between two events on the device, and those until everything was launched.

    Queued work does not shorten the first, and waiting for the device does not lengthen the second. Waiting for other
    streams that go on after the second event counts, too.
    """
    *others, (args, kwargs) = calls
    wall, processor = CLOCK.wall, CLOCK.processor
    first, last = _Event(enable_timing=True), _Event(enable_timing=True)
    _synchronize()
    computed = processor()
    first.record()
    start = wall()
    for other_args, other_kwargs in others:
        program(*other_args, **other_kwargs)
    output = program(*args, **kwargs)
    host = wall() - start
    last.record()
    last.synchronize()
    ended = wall()
    _synchronize()
    seconds = first.elapsed_time(last) / 1e3 + wall() - ended
    return Sample(seconds, wall() - start, processor() - computed, len(calls), host), output
