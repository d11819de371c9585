"""The rows of the evaluation as tests, for ``pytest --fx-tables``. A passed test is a row that was measured."""

from __future__ import annotations

import pytest

from pytest_fx.options import options_of
from pytest_fx.report.progress import progress_of
from pytest_fx.tables.measurements import measure
from pytest_fx.tables.table import Row, Table
from pytest_fx.tables.tables_run import RUN, send


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every selected row; mark those that take times for pytest-xdist, and those that need a GPU."""
    run = metafunc.config.stash.get(RUN, None)
    chosen = [] if run is None else [(table, row) for table in run.tables for row in table.rows(run.scale)]
    distributed = hasattr(metafunc.config, "workerinput")
    cases = [
        pytest.param(
            table,
            row,
            id=f"{table.name}:{row.keyword}",
            marks=[
                *([pytest.mark.xdist_group("fx-timing")] if row.timed and distributed else []),
                *([pytest.mark.fx_gpu] if row.on_gpu else []),
            ],
        )
        for table, row in chosen
    ]
    metafunc.parametrize("table, row", cases)


def test_table(request: pytest.FixtureRequest, table: Table, row: Row) -> None:
    """Measure one row, unless its record still holds; skip it with the reason if this machine cannot."""
    run = request.config.stash[RUN]
    record = None if run.afresh else run.measurements.still_holds(table, row)
    if record is not None:
        progress_of(request.config).doing(None)  # others will take longer
        pytest.skip(f"it was measured at {record['measured']}, and nothing that it depends on has changed since")
    if row.timed and not options_of(request.node).timing:
        pytest.skip("the run takes no times (--fx-no-timing)")
    record = measure(row)
    if hasattr(request.config, "workerinput"):
        send(request.node, table, record)
    else:
        run.keep(table, record)
    if record["reason"] is not None:
        pytest.skip(record["reason"])
