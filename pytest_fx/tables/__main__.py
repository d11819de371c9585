"""``python -m pytest_fx.tables``: the rows of the evaluation that have to be measured again, and how long they took."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_fx.tables.measurements import Measurements
from pytest_fx.tables.table import Scale, Table, get_table, list_tables
from pytest_fx.tables.tables_run import FOLDER


def main() -> None:
    """List, for each table, the rows that are older than the code, and count those not measured on this machine."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path, help="the folder with the documents")
    measurements = Measurements(parser.parse_args().folder / "raw")
    for name in list_tables():
        sys.stdout.write("\n".join(_lines(get_table(name), measurements)) + "\n")


def _lines(table: Table, measurements: Measurements) -> list[str]:
    lasts = {row.name: measurements.last(table, row) for row in table.rows(Scale())}
    stale = measurements.stale(table, Scale())
    missing = sum(record is None for record in lasts.values())
    took = [record["took"] for row in stale if (record := lasts[row]) is not None and record.get("took")]
    time = f"; {len(took)} of them took {sum(took) / 60:.1f} minutes" if took else ""
    lines = [f"{table.name}: {len(stale)} of {len(lasts)} rows to measure again{time}; {missing} not measured here"]
    return [*lines, *(f"  {row}" for row in stale), *[f"  pytest --fx-tables={table.name}"] * bool(stale)]


if __name__ == "__main__":
    main()
