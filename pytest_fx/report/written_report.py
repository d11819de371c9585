"""Writing a report at the end of a run: its rows, the history of its folder, and the page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_fx.errors import ReportError
from pytest_fx.records.records import describe_machine, write_atomically
from pytest_fx.report.columns import SummaryColumn
from pytest_fx.report.pull_request import annotations_of, summary_of, write_summary_file
from pytest_fx.report.report_page import page_of
from pytest_fx.report.reported_run import (
    MARKDOWN,
    PAGE,
    EarlierRun,
    ReportedRun,
    read_history,
    read_run,
    write_history,
)
from pytest_fx.report.run_comparison import changes_between


def write(
    run: Mapping[str, Any],
    lines: Sequence[dict[str, Any]],
    columns: Sequence[SummaryColumn],
    folder: Path | None,
    summary_folder: Path | None,
    root: Path,
) -> list[str]:
    """Write the results of a run, and return the lines to print on the terminal.

    Args:
        run: facts on the run.
        lines: its rows and tests.
        columns: users' columns.
        folder: the folder of the report, if one is requested.
        summary_folder: the plugin's own folder, if a pull request is to be annotated.
        root: pytest's root folder; paths are relative to it.
    """
    reported = ReportedRun({**run, "commit": describe_machine()["commit"]}, list(lines))
    reported.add_columns(columns)
    messages: list[str] = []
    earlier: EarlierRun | None = None
    if folder is not None:
        try:
            history = write_report(reported, folder)
            earlier = history[-1] if history else None
            write_atomically(folder / MARKDOWN, summary_of(reported, earlier))
            messages.append(f"fx: the report is {os.path.relpath(folder / PAGE)}")
        except OSError as error:
            messages.append(f"fx: the report could not be written: {error}")
    return messages if summary_folder is None else [*messages, *_annotated(reported, earlier, summary_folder, root)]


def _annotated(run: ReportedRun, earlier: EarlierRun | None, folder: Path, root: Path) -> list[str]:
    """Write the summary of a pull request; return the annotations, and a line with the place of the summary."""
    changes = [] if earlier is None else changes_between(earlier.entries, run.entries())
    messages = annotations_of(run, changes, root)
    try:
        path = write_summary_file(summary_of(run, earlier), folder)
    except OSError as error:
        return [*messages, f"fx: the summary could not be written: {error}"]
    return [*messages, f"fx: the summary is {os.path.relpath(path)}"]


def write_report(run: ReportedRun, folder: Path) -> list[EarlierRun]:
    """Write a run into ``folder``, and move the run that was there to its history; return the history."""
    history = read_history(folder)
    try:
        there = read_run(folder)
    except ReportError:  # no earlier run, or none that can be read
        pass
    else:
        if there.run.get("id") != run.run.get("id"):
            history.append(EarlierRun.of(there))
    folder.mkdir(parents=True, exist_ok=True)
    write_history(folder, history)
    run.write(folder)
    write_atomically(folder / PAGE, page_of(run, history))
    return history
