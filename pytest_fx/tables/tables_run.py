"""One run of ``pytest --fx-tables``: its tables, its folder, and the documents written at its end."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fx.errors import FxError
from pytest_fx.options import OPTIONS
from pytest_fx.records.records import write_atomically
from pytest_fx.tables import get_table, list_tables
from pytest_fx.tables.documents import Section, read_results, read_sections, write_documents
from pytest_fx.tables.measurements import Measurements
from pytest_fx.tables.table import Scale, Table

ALL = "all"
"""The name that selects every table."""
FOLDER = "results"
"""The folder of the documents, below pytest's root folder; the records are in its subfolder ``raw``."""
_PROPERTY = "fx-table"
"""The user property of a test's report in which a worker sends a record."""


@dataclass(frozen=True, slots=True)
class TablesRun:
    """The tables and settings of a run, and its folder."""

    tables: tuple[Table, ...]
    """The requested tables."""
    scale: Scale
    """The size of the evaluation."""
    afresh: bool
    """Whether to measure again the rows that have a valid record."""
    folder: Path
    """The folder for the documents."""
    said: list[str] = field(default_factory=list[str])
    """Lines to print at the end of the run."""

    @property
    def measurements(self) -> Measurements:
        """The raw records."""
        return Measurements(self.folder / "raw")

    def keep(self, table: Table, record: Mapping[str, Any]) -> None:
        """Append ``record`` to those on disk. If that fails, end the run, and print the record to be added by hand."""
        try:
            self.measurements.keep(table, record)
        except OSError as error:
            path = self.measurements.path(table)
            self.said.append(f"this record is not on disk; append it to {path}:")
            self.said.append(json.dumps(record, default=str))
            reason = f"measurements cannot be written to {path}: {error.strerror}; make room, and run this again"
            pytest.exit(reason, returncode=pytest.ExitCode.TESTS_FAILED)


RUN = pytest.StashKey[TablesRun]()
"""The stash key of the run in a :class:`pytest.Config`."""


def prepare(config: pytest.Config, names: str, afresh: bool, where: str = "") -> None:
    """Select the tables in ``names``, separated by commas. Error messages about names begin with ``where``.

    Raises :class:`pytest.UsageError` for an unknown table, and for a folder that is not writable.
    """
    options = config.stash[OPTIONS]
    named = list_tables() if names == ALL else [name.strip() for name in names.split(",")]
    try:
        tables = tuple(get_table(name) for name in dict.fromkeys(named))
    except FxError as error:
        raise pytest.UsageError(f"{where}{error}") from None
    folder = config.rootpath / FOLDER
    scale = Scale(options.size, options.rounds, options.seed)
    config.stash[RUN] = TablesRun(tables, scale, afresh, folder)
    if not hasattr(config, "workerinput"):
        _check_writable(folder)


def _check_writable(folder: Path) -> None:
    """Fail before the measurements, not after hours of them, if the folder is not writable."""
    probe = folder / "raw" / ".writable"
    try:
        write_atomically(probe, "")
        probe.unlink()
    except OSError as error:
        raise pytest.UsageError(
            f"results cannot be written to {folder}: {error.strerror}\n"
            "  try    run pytest in a folder of your own, or with --rootdir"
        ) from None


def send(item: pytest.Item, table: Table, record: Mapping[str, Any]) -> None:
    """Attach ``record`` to the report of ``item``, which takes it to the process that writes."""
    item.user_properties.append((_PROPERTY, {"table": table.name, "record": dict(record)}))


def receive(config: pytest.Config, report: pytest.TestReport) -> None:
    """Store the record that a worker sent with ``report``, if there is one."""
    for name, sent in report.user_properties if report.when == "call" else ():
        if name == _PROPERTY and isinstance(sent, dict):
            config.stash[RUN].keep(get_table(sent["table"]), sent["record"])


def finish(config: pytest.Config) -> None:
    """Write the documents from all records, also after an interruption; xdist workers write nothing."""
    run = config.stash.get(RUN, None)
    if run is None or config.option.collectonly or hasattr(config, "workerinput"):
        return
    sections = read_sections(run.folder)
    if not sections:  # nothing was measured, now or before
        for folder in (run.folder / "raw", run.folder):
            with suppress(OSError):  # it has files, or is not there
                folder.rmdir()
        return
    try:
        files = _write_figures(run, [section for table_sections in sections.values() for section in table_sections])
        for name, text in write_documents(sections, files, read_results(run.folder)).items():
            write_atomically(run.folder / name, text)
    except OSError as error:
        run.said.append(f"the documents could not be written: {error}")
    else:
        run.said.append(f"written: {run.folder / 'README.md'}, and a page for {', '.join(sections) or 'no table'}")
    for table in (get_table(name) for name in list_tables()):
        if stale := run.measurements.stale(table, run.scale):
            again = f"pytest --fx-tables={table.name}"
            run.said.append(f"of other code or conditions than today's: {len(stale)} rows of {table.name} ({again})")
        if damaged := run.measurements.damaged(table):
            path = run.measurements.path(table)
            run.said.append(f"left out: {damaged} line{'s' * (damaged != 1)} of {path} that are not records of a row")


def _write_figures(run: TablesRun, sections: list[Section]) -> frozenset[str]:
    """Draw the figures, and return the names of all files in the folder, those of earlier runs included."""
    if find_spec("matplotlib") is None:
        run.said.append("no figures are drawn: matplotlib is not installed (pip install 'pytest-fx[tables]')")
    else:
        draw = importlib.import_module("pytest_fx.tables.figure").draw
        for section in sections:
            if section.measured:
                write_atomically(run.folder / section.figure, draw(section))
            if (drawn := section.timeline) is not None:
                timeline = importlib.import_module("pytest_fx.tables.timeline")
                write_atomically(run.folder / drawn[0], timeline.draw_timeline(section))
    return files_in(run.folder)


def files_in(folder: Path) -> frozenset[str]:
    """Return the names of the files in ``folder``."""
    return frozenset(path.name for path in folder.iterdir() if path.is_file())


def summary(config: pytest.Config) -> list[str]:
    """Return the lines to print at the end of the run."""
    return config.stash[RUN].said
