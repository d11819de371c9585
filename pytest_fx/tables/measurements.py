"""Measurements on disk: a file of JSON lines for each table, one line for each measurement of a row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import fx
import model_zoo
from pytest_fx.records.reading import has_types
from pytest_fx.records.records import append_record, describe_machine, read_records
from pytest_fx.tables.table import NotRun, Row, Scale, Table

MACHINE = ("machine", "cores", "device")
"""The parts of a record that identify its machine."""
_CONDITIONS = (*MACHINE, "cpu_capability", "python", "settings", "code")
"""The parts of a record that must be equal for it to still hold, beside the version of torch."""


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
        here = {"row": row.name, **describe_machine()}
        return next((record for record in reversed(self.read(table)) if _same_row(record, here)), None)

    def still_holds(self, table: Table, row: Row) -> dict[str, Any] | None:
        """Return the last record of ``row`` if it has values and was measured under the present conditions, or None."""
        record = self.last(table, row)
        if record is None or record.get("values") is None:
            return None
        now = _conditions(row)
        same = all(record.get(part) == now[part] for part in _CONDITIONS)
        return record if same and record["versions"].get("torch") == now["versions"]["torch"] else None

    def stale(self, table: Table, scale: Scale) -> int:
        """Return the number of rows measured here under other conditions, such as another version of the code."""
        measured = [row for row in table.rows(scale) if (self.last(table, row) or {}).get("values") is not None]
        return sum(self.still_holds(table, row) is None for row in measured)

    def keep(self, table: Table, record: Mapping[str, Any]) -> None:
        """Append ``record`` to those of ``table``, unless it repeats the last reason why the row could not be run."""
        earlier = [other for other in self.read(table) if _same_row(other, record)]
        if record["values"] is not None or not earlier or earlier[-1].get("reason") != record["reason"]:
            append_record(self.path(table), record)


def measure(row: Row) -> dict[str, Any]:
    """Measure ``row`` and return the record: its values or the reason why it cannot be run, with the conditions."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    values: dict[str, Any] | None = None
    reason: str | None = None
    try:
        values = dict(row.measure())
    except NotRun as error:
        reason = str(error)
    measured = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = {"row": row.name, "reason": reason, "values": values, "load": load}
    return {"measured": measured, **record, **_conditions(row)}


def _same_row(record: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(record[part] == other[part] for part in ("row", *MACHINE))


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
    return {"settings": dict(row.settings), "code": code_fingerprint(), **describe_machine()}


@cache
def code_fingerprint() -> str:
    """Return a hash of all source files of ``fx`` and ``model_zoo``."""
    digest = hashlib.sha256()
    for package in (fx, model_zoo):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
