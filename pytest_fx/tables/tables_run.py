"""One run of ``pytest --fx-tables``: which tables, where to, and the documents that are written at its end."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fx.errors import FxError
from pytest_fx.options import OPTIONS
from pytest_fx.records.records import write_atomically
from pytest_fx.tables import get_table, list_tables
from pytest_fx.tables.documents import Section, read_sections, write_documents
from pytest_fx.tables.measurements import Measurements
from pytest_fx.tables.table import Scale, Table

ALL = "all"
"""What stands for every table."""
FOLDER = "results"
"""Where the documents are, below the folder that pytest runs in; the records are in ``raw`` below it."""
_PROPERTY = "fx-table"
"""The user property that carries a record on the report of a worker's test."""


@dataclass(frozen=True, slots=True)
class TablesRun:
    """What a run measures, and where it writes."""

    tables: tuple[Table, ...]
    """The tables that were asked for."""
    scale: Scale
    """How large the evaluation is."""
    afresh: bool
    """Whether rows are measured that were measured already."""
    folder: Path
    """Where the documents are written."""
    said: list[str] = field(default_factory=list[str])
    """What there is to say at the end of the run."""

    @property
    def measurements(self) -> Measurements:
        """The raw records."""
        return Measurements(self.folder / "raw")

    def keep(self, table: Table, record: Mapping[str, Any]) -> None:
        """Add ``record`` to those on disk; or end the run, which measures for nothing, and say what to add by hand."""
        try:
            self.measurements.keep(table, record)
        except OSError as error:
            path = self.measurements.path(table)
            self.said.append(f"not on disk is this record, which belongs into {path}:")
            self.said.append(json.dumps(record, default=str))
            reason = f"what is measured cannot be kept in {path}: {error.strerror}; make room, and run this again"
            pytest.exit(reason, returncode=pytest.ExitCode.TESTS_FAILED)


RUN = pytest.StashKey[TablesRun]()
"""Where a :class:`pytest.Config` keeps the run."""


def prepare(config: pytest.Config, names: str, afresh: bool, where: str = "") -> None:
    """Choose the tables called ``names``, separated by commas; an error on them begins with ``where``.

    Raises :class:`pytest.UsageError` for a table that there is not, and for a folder that cannot be written to.
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
    """Find out before hours of measuring, not after them, that nothing can be kept."""
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
    """Attach ``record`` to the report of ``item``, with which it travels to the process that writes."""
    item.user_properties.append((_PROPERTY, {"table": table.name, "record": dict(record)}))


def receive(config: pytest.Config, report: pytest.TestReport) -> None:
    """Keep the record that a worker sent with ``report``, if there is one."""
    for name, sent in report.user_properties if report.when == "call" else ():
        if name == _PROPERTY and isinstance(sent, dict):
            config.stash[RUN].keep(get_table(sent["table"]), sent["record"])


def finish(config: pytest.Config) -> None:
    """Write the documents from all that is recorded, also after an interruption, in the process that has all of it."""
    run = config.stash[RUN]
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    sections = read_sections(run.folder)
    try:
        figures = _write_figures(run, [section for found in sections.values() for section in found])
        for name, text in write_documents(sections, figures).items():
            write_atomically(run.folder / name, text)
    except OSError as error:
        run.said.append(f"the documents could not be written: {error}")
    else:
        run.said.append(f"written: {run.folder / 'README.md'}, and a page for {', '.join(sections) or 'no table'}")
    for table in (get_table(name) for name in list_tables()):
        if damaged := run.measurements.damaged(table):
            path = run.measurements.path(table)
            run.said.append(f"left out: {damaged} line{'s' * (damaged != 1)} of {path} that are not records of a row")


def _write_figures(run: TablesRun, sections: list[Section]) -> frozenset[str]:
    """Draw what was measured; return the names of the figures that the folder has, those of earlier runs included."""
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
    return figures_in(run.folder)


def figures_in(folder: Path) -> frozenset[str]:
    """Return the names of the figures in ``folder``."""
    return frozenset(path.name for path in folder.glob("*.svg"))


def summary(config: pytest.Config) -> list[str]:
    """Return what there is to say at the end of the run."""
    return config.stash[RUN].said
