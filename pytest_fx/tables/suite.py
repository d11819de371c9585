"""The rows of the evaluation as tests: what ``pytest --fx-tables`` runs. A passed test is a row that was measured."""

from __future__ import annotations

import pytest

from pytest_fx.benchmark_records import reason_not_to_time
from pytest_fx.options import options_of

from .run import RUN
from .table import Row, Table


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every row that was asked for."""
    run = metafunc.config.stash.get(RUN, None)
    chosen = [] if run is None else [(table, row) for table in run.tables for row in table.rows(run.scale)]
    names = [f"{table.name}: {row.name}" for table, row in chosen]
    metafunc.parametrize(("table", "row"), chosen, ids=names)


def test_table(request: pytest.FixtureRequest, table: Table, row: Row) -> None:
    """Measure one row, unless that was done already; skip it with the reason if this machine cannot."""
    run = request.config.stash[RUN]
    record = None if run.afresh else run.measurements.still_holds(table, row)
    if record is not None:
        pytest.skip(f"measured {record['measured']}")
    if row.timed:
        timing = options_of(request.node).timing
        reason = reason_not_to_time(request.config) if timing else "no times are wanted"
        if reason is not None:
            pytest.skip(reason)
    reason = run.measurements.measure(table, row)
    if reason is not None:
        pytest.skip(reason)
