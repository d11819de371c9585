"""Measurements on disk: a file of JSON lines for each table, one line for each measurement of a row."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_fx.records.reading import has_types
from pytest_fx.records.records import append_record, describe_machine, read_records
from pytest_fx.tables.table import NotRun, Row, Scale, Table
from pytest_fx.tables.used_files import code_fingerprint, note_used_files

MACHINE = ("machine", "cores", "device")
"""The parts of a record that identify its machine."""
_CONDITIONS = (*MACHINE, "cpu_capability", "python", "settings")
"""The parts of a record that must be equal for it to still hold, beside the version of torch and the code."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The fields of every record, beside its values or the reason why there are none."""

    row: str
    measured: str
    machine: str
    cores: int
    device: str | None
    versions: dict  # pyright: ignore[reportMissingTypeArgument]  its values are reported as they are
    load: float | None


@dataclass(frozen=True, slots=True)
class Measurements:
    """The raw records of an evaluation. Records are only ever appended; the last one of a row is reported."""

    folder: Path
    """The folder of the files."""

    def path(self, table: Table) -> Path:
        """Return the file of ``table``."""
        return self.folder / f"{table.name}.jsonl"

    def read(self, table: Table) -> list[dict[str, Any]]:
        """Return the records of ``table``, oldest first. Lines that are not records are left out."""
        records = read_records(self.path(table))
        return [record for record in records if _is_complete(table, record)]

    def damaged(self, table: Table) -> int:
        """Return the number of lines that :meth:`read` leaves out."""
        path = self.path(table)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return sum(1 for line in lines if line.strip()) - len(self.read(table))

    def last(self, table: Table, row: Row) -> dict[str, Any] | None:
        """Return the last record of ``row`` on this machine, or None."""
        return self._last(table, row, read_records(self.path(table)))

    def _last(self, table: Table, row: Row, records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        here = {"row": row.name, **describe_machine()}
        own = (record for record in reversed(records) if _same_row(record, here))
        return next((record for record in own if _is_complete(table, record)), None)

    def still_holds(self, table: Table, row: Row) -> dict[str, Any] | None:
        """Return the last record of ``row`` if it has values and was measured under the present conditions, or None."""
        record = self.last(table, row)
        return record if record is not None and _holds(record, row) else None

    def stale(self, table: Table, scale: Scale) -> list[str]:
        """Return the rows measured here under other conditions, such as another version of the code that they use."""
        records = read_records(self.path(table))
        lasts = [(row, self._last(table, row, records)) for row in table.rows(scale)]
        return [
            row.name
            for row, record in lasts
            if record is not None and record.get("values") is not None and not _holds(record, row)
        ]

    def keep(self, table: Table, record: Mapping[str, Any]) -> None:
        """Append ``record`` to those of ``table``, unless it repeats the last reason why the row could not be run."""
        earlier = [other for other in read_records(self.path(table)) if _same_row(other, record)]
        if record["values"] is not None or not earlier or earlier[-1].get("reason") != record["reason"]:
            append_record(self.path(table), record)


def measure(row: Row) -> dict[str, Any]:
    """Measure ``row`` and return the record: its values or the reason why it cannot be run, with the conditions."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    values: dict[str, Any] | None = None
    reason: str | None = None
    begun = time.perf_counter()
    with note_used_files() as files:
        try:
            values = dict(row.measure())
        except NotRun as error:
            reason = str(error)
    took = round(time.perf_counter() - begun, 1)
    measured = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = {"row": row.name, "reason": reason, "values": values, "load": load, "took": took}
    return {"measured": measured, **record, **_conditions(row), "files": files, "code": code_fingerprint(files)}


def is_of_this_code(record: Mapping[str, Any]) -> bool:
    """Return whether the files that a measurement used have the same code today.

    Older records do not name them, and are compared with the code of all files.
    """
    files = record.get("files")
    return record.get("code") == code_fingerprint(files if isinstance(files, list) else None)


def _holds(record: Mapping[str, Any], row: Row) -> bool:
    now = _conditions(row)
    same = all(record.get(part) == now[part] for part in _CONDITIONS)
    same_torch = record["versions"].get("torch") == now["versions"]["torch"]
    return record.get("values") is not None and same and same_torch and is_of_this_code(record)


def _same_row(record: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(record.get(part) == other.get(part) for part in ("row", *MACHINE))


def _is_complete(table: Table, record: Mapping[str, Any]) -> bool:
    """Return whether a record has all fields, and either valid values or a reason."""
    if not has_types(_Record, record):
        return False
    values = record.get("values")
    if not isinstance(values, dict):
        return values is None and isinstance(record.get("reason"), str)
    try:
        numbers = table.numbers(values)
    except Exception:  # a damaged record can raise anything here
        return False
    return all(isinstance(number, int | float) for number in numbers.values())


def _conditions(row: Row) -> dict[str, Any]:
    return {"settings": dict(row.settings), **describe_machine()}
