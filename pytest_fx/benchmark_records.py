"""Timings as pytest-benchmark's benchmarks: in its table, in ``--benchmark-json``, in its comparisons."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

TIMING_FIXTURE = "fx_timing"


@dataclass(frozen=True, slots=True)
class BenchmarkRecord:
    """One program's times, with the attributes that pytest-benchmark reads from its own fixture."""

    name: str
    """What the table calls it."""
    fullname: str
    """What it is compared by with earlier runs."""
    group: str
    """The table that it is a row of."""
    param: str | None
    """The test's parameters in one string."""
    params: dict[str, Any] | None
    """The test's parameters by name."""
    extra_info: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else is known of the measurement."""
    cprofile_stats: None = None
    """No profile is taken."""
    has_error: bool = False
    """It was measured without an error, or it would not be recorded."""


def reason_not_to_time(config: pytest.Config) -> str | None:
    """Return why times taken now would mean nothing or are not wanted, or None."""
    session = _benchmark_session(config)
    if hasattr(config, "workerinput"):
        return "times taken beside other workers mean nothing: run without -n"
    if session is not None and session.disabled:
        return "benchmarks are switched off"
    return None


def add_benchmark(config: pytest.Config, record: BenchmarkRecord, seconds: Sequence[float], iterations: int) -> None:
    """Hand the times of one program to pytest-benchmark, if that plugin is there."""
    session = _benchmark_session(config)
    if session is None:
        return
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - not before there is something to record

    benchmark: Any = Metadata(record, iterations=iterations, options={})  # pyright: ignore[reportUnknownArgumentType]
    for sample in seconds:
        benchmark.update(sample * iterations)  # pytest-benchmark divides by it again
    session.benchmarks.append(benchmark)


@contextmanager
def presented_as_benchmarks(items: Sequence[pytest.Item]) -> Generator[None]:
    """Let every test that asks for ``fx_timing`` look as if it asked for pytest-benchmark's ``benchmark`` fixture.

    By that name pytest-benchmark picks the tests of ``--benchmark-only`` and ``--benchmark-skip``. The name must not
    stay: the fixture would be made, and would complain that nobody used it.
    """
    timings = [item for item in items if isinstance(item, pytest.Function) and TIMING_FIXTURE in item.fixturenames]
    originals = [item.fixturenames for item in timings]
    for item in timings:
        item.fixturenames = [*item.fixturenames, "benchmark"]
    try:
        yield
    finally:
        for item, names in zip(timings, originals, strict=True):
            item.fixturenames = names


def _benchmark_session(config: pytest.Config) -> Any | None:
    return config.pluginmanager.get_plugin("pytest-benchmark")
