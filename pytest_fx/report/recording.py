"""Recording of measured rows: on the report of their test, in the journal of the run, and in pytest-benchmark.

A worker of pytest-xdist only attaches rows to reports. The controller receives the reports and writes the rows, so that
none is written twice. A child process of ``--fx-isolate`` reports each row to its parent at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest

from pytest_fx.parallel.distribution import is_worker, plain_name
from pytest_fx.records.benchmark_records import add_benchmarks
from pytest_fx.records.journal import Journal
from pytest_fx.records.records import describe_machine
from pytest_fx.records.running import REPORT
from pytest_fx.report.rows import FAILURE, PROPERTY, SummaryRow, collect_rows, records_on, verdict_of
from pytest_fx.report.summary import NOTES

JOURNAL = pytest.StashKey[Journal]()
"""The stash key of the journal of a run, once there is one."""


def record_row(item: pytest.Item, row: SummaryRow, timing: Mapping[str, Any] | None = None) -> None:
    """Record ``row``, and ``timing`` if it was timed: the samples, and all conditions of the measurement.

    The record is on disk when this returns, or, in a worker, when the controller has the report of the test.
    """
    record = {"row": asdict(row), "timing": timing, "machine": describe_machine()}
    item.user_properties.append((PROPERTY, record))
    if (report := item.config.stash.get(REPORT, None)) is not None:
        report("record", record)
    else:
        keep(item.config, item.nodeid, record)


def record_failure(item: pytest.Item, facts: Mapping[str, Any]) -> None:
    """Attach the facts on a failure to the report of ``item``, for ``--fx-report`` and ``--fx-annotate``."""
    item.user_properties.append((FAILURE, dict(facts)))


def note_row(item: pytest.Item, row: SummaryRow) -> None:
    """Attach an addition to a measured row, such as its verdict, to the report of ``item``."""
    item.user_properties.append((PROPERTY, {"row": asdict(row), "timing": None}))


def keep(config: pytest.Config, test: str, record: Mapping[str, Any]) -> None:
    """Write a record of ``test``, unless this process is a worker."""
    if not is_worker(config):
        _write(config, test, record)


def receive(config: pytest.Config, report: Any, worker: str) -> None:
    """Write the rows on a report that came from a worker."""
    for record in records_on(report):
        if "machine" not in record:  # a note
            continue
        _write(config, plain_name(report.nodeid), record, worker)


def _finish(config: pytest.Config, journal: Journal) -> None:
    """Write the record of the run, with the verdicts from the reports of its tests."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    stats: dict[str, list[Any]] = {} if reporter is None else reporter.stats
    rows = collect_rows(report for reports in stats.values() for report in reports)
    journal.finish([{"model": row.model, "program": row.program, "verdict": verdict_of(row)} for row in rows])


def _write(config: pytest.Config, test: str, record: Mapping[str, Any], worker: str | None = None) -> None:
    journal = config.stash.get(JOURNAL, None)
    if journal is None:
        journal = config.stash[JOURNAL] = Journal(config.rootpath)
        config.add_cleanup(partial(_finish, config, journal))
    journal.append({"test": test, "worker": worker, **record})
    if journal.problem is not None:
        config.stash[NOTES] = [f"what was measured is not on disk: {journal.problem}"]
    if record["timing"] is not None:
        add_benchmarks(config, test, record["timing"])
