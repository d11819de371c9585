"""Timings as pytest-benchmark's benchmarks: in its table, in ``--benchmark-json``, in its comparisons."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

TIMING_FIXTURE = "fx_timing"
GROUP = "fx "
"""The prefix of the names of our groups of timings."""
OF_TABLE = (
    *("columns", "sort", "group-by", "name", "time-unit", "histogram", "csv", "verbose"),
    *("compare", "compare-fail", "cprofile", "cprofile-loops", "cprofile-top", "cprofile-dump"),
)
"""Options of pytest-benchmark that concern its table."""


@dataclass(frozen=True, slots=True)
class BenchmarkRecord:
    """One program's times, with the attributes that pytest-benchmark reads from its own fixture."""

    name: str
    """The program, as the table calls it."""
    fullname: str
    """The name by which earlier runs are compared."""
    group: str
    """The table that has it as a row."""
    param: str | None
    """The test's parameters in one string."""
    params: dict[str, Any] | None
    """The test's parameters by name."""
    extra_info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts on the measurement."""
    cprofile_stats: None = None
    """No profile is taken."""
    has_error: bool = False
    """Always false: a measurement with an error is not recorded."""


def add_benchmarks(config: pytest.Config, test: str, timing: Mapping[str, Any]) -> None:
    """Hand both programs of a timing to pytest-benchmark, if that plugin is active and wants any.

    ``timing`` is the timing that :func:`~pytest_fx.report.recording.record_row` received; ``test`` is the name of its
    test.
    """
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is None:
        return
    model, label = timing["model"], timing["label"]
    for role, name in (("eager", f"{model} eager, beside {label}"), ("transformed", f"{model} {label}")):
        record = BenchmarkRecord(
            name=name,
            fullname=f"{test}:{'eager' if role == 'eager' else label}",
            group=f"{GROUP}{model}",
            param=timing["param"],
            params=timing["params"],
            extra_info={**timing["info"], "role": role},
        )
        session.benchmarks.append(_benchmark(record, timing[role], timing["iterations"]))


def benchmarks_disabled(config: pytest.Config) -> bool:
    """Return whether the user switched benchmarks off, as pytest-benchmark itself does beside pytest-xdist."""
    return bool(config.getoption("benchmark_disable", False) and not config.getoption("benchmark_enable", False))


def _benchmark(record: BenchmarkRecord, seconds: Sequence[float], iterations: int) -> Any:
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - not before there is something to record

    benchmark: Any = Metadata(record, iterations=iterations, options={})  # pyright: ignore[reportUnknownArgumentType]
    for sample in seconds:
        benchmark.update(sample * iterations)  # pytest-benchmark divides by it again
    return benchmark


@contextmanager
def presented_as_benchmarks(items: Sequence[pytest.Item]) -> Generator[None]:
    """Let tests with ``fx_timing`` look inside the block as if they used pytest-benchmark's ``benchmark`` fixture.

    By that name pytest-benchmark selects the tests of ``--benchmark-only`` and ``--benchmark-skip``. The name must not
    stay: the fixture would be set up, and would complain that nobody used it.
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
        if timings and not any("benchmark" in getattr(item, "fixturenames", ()) for item in items):
            # Beside pytest-xdist it would report that it measures nothing, which is not true of these.
            session: Any = timings[0].config.pluginmanager.get_plugin("pytest-benchmark")
            if session is not None:
                session.xdist_benchmark_found = False


@contextmanager
def table_left_out(config: pytest.Config) -> Generator[None]:
    """Remove our timings from pytest-benchmark's table inside the block, unless the table is asked for.

    The plugin's own table has them. They stay with ``-v``, or with an option of pytest-benchmark on the form of its
    table or on its comparisons. The user's own benchmarks always stay.
    """
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    groups = getattr(session, "groups", None)
    if not groups or config.get_verbosity() > 0 or _asks_for_table(config):
        yield
        return
    remaining = [(name, [entry for entry in benchmarks if not _is_ours(entry)]) for name, benchmarks in groups]
    session.groups = [(name, benchmarks) for name, benchmarks in remaining if benchmarks]
    try:
        yield
    finally:
        session.groups = groups


def _is_ours(benchmark: Mapping[str, Any]) -> bool:
    return str(benchmark.get("group")).startswith(GROUP) and "role" in benchmark.get("extra_info", {})


def _asks_for_table(config: pytest.Config) -> bool:
    """Return whether an option on pytest-benchmark's table is given, also in the ini file or the environment."""
    arguments = [*config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    arguments += map(str, config.invocation_params.args)
    flags = {argument.partition("=")[0] for argument in arguments}
    return any(f"--benchmark-{name}" in flags for name in OF_TABLE)
