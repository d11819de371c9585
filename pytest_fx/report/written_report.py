"""Writing a report when a run ends: its rows, the history of its folder, and the page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_fx.errors import ReportError
from pytest_fx.records.records import describe_machine, write_atomically
from pytest_fx.report.report_page import page_of
from pytest_fx.report.reported_run import (
    PAGE,
    EarlierRun,
    ReportedRun,
    read_history,
    read_run,
    write_history,
)


def write(
    run: Mapping[str, Any],
    lines: Sequence[dict[str, Any]],
    folder: Path | None,
    annotations: Path | None,
    root: Path,
) -> list[str]:
    """Write what a run found out, and return what is to be said of it on the terminal.

    Args:
        run: what is known of the run.
        lines: its rows and tests.
        folder: where the report goes, if one is asked for.
        annotations: the plugin's own folder, if a pull request is to be told.
        root: pytest's root folder, from which paths are shown.
    """
    reported = ReportedRun({**run, "commit": describe_machine()["commit"]}, list(lines))
    told: list[str] = []
    if folder is not None:
        try:
            write_report(reported, folder)
            told.append(f"fx: the report is {os.path.relpath(folder / PAGE)}")
        except OSError as error:
            told.append(f"fx: the report could not be written: {error}")
    return told


def write_report(run: ReportedRun, folder: Path) -> list[EarlierRun]:
    """Write a run into ``folder``, and the run that is there into its history; return the history."""
    history = read_history(folder)
    try:
        there = read_run(folder)
    except ReportError:  # nothing is there, or nothing that can be read
        pass
    else:
        if there.run.get("id") != run.run.get("id"):
            history.append(EarlierRun.of(there))
    folder.mkdir(parents=True, exist_ok=True)
    write_history(folder, history)
    run.write(folder)
    write_atomically(folder / PAGE, page_of(run, history))
    return history
