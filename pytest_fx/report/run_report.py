"""Collection of the data for ``--fx-report`` and ``--fx-annotate`` while tests run; written when the run ends.

This module does not import torch. A run that does not use the plugin writes nothing.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest

from pytest_fx.lazy import load
from pytest_fx.options import OPTIONS
from pytest_fx.parallel.distribution import is_worker, plain_name
from pytest_fx.records.running import FOLDER
from pytest_fx.report.columns import columns_of, is_users
from pytest_fx.report.rows import FAILURE, collect_rows, records_on

LONGEST_TEXT = 20_000
"""Maximum length of the text of a failure, in characters."""


def report_run(config: pytest.Config) -> None:
    """Collect the results of this run if a report is requested and this process is not a worker."""
    if config.stash[OPTIONS].reports and not is_worker(config):
        config.pluginmanager.register(RunReport(config), "fx-run-report")


class RunReport:
    """A collector and writer of lines on rows and tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._process = os.getpid()
        self._begun = _now()
        self._lines: list[dict[str, Any]] = []
        self._outcomes: Counter[str] = Counter()
        self._messages: list[str] = []
        """Lines to print at the end of the run."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Collect the records on the report of a test."""
        test, worker = plain_name(report.nodeid), getattr(report, "worker_id", None)
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.outcome if report.when == "call" or report.outcome == "skipped" else "error"] += 1
        records = records_on(report)
        for record in records:
            row = {name: value for name, value in record["row"].items() if value is not None}
            self._lines.append({"kind": "row", "test": test, "worker": worker, **record, "row": row})
        for row in collect_rows([report]):
            if row.outcome == "fails":  # the recorded row does not have this outcome
                facts = {"model": row.model, "program": row.program, "outcome": row.outcome}
                self._lines.append({"kind": "row", "test": test, "worker": worker, "row": facts})
        if report.outcome == "failed":
            facts = dict(getattr(report, "user_properties", ())).get(FAILURE) if report.when == "call" else None
            line = {
                "kind": "failure",
                "test": test,
                "when": report.when,
                "text": _text(report),
                "place": _place(report),
            }
            self._lines.append({**line, "facts": facts})
        elif report.outcome == "skipped" and records:
            self._lines.append({"kind": "skip", "test": test, "text": _reason(report)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the report, also when the run was interrupted."""
        is_used = self._config.stash[OPTIONS].used or any(line["kind"] == "row" for line in self._lines)
        if os.getpid() != self._process or not is_used or self._config.option.collectonly:
            return
        run = {
            "id": uuid.uuid4().hex,
            "begun": self._begun,
            "ended": _now(),
            "arguments": list(self._config.invocation_params.args),
            "interrupted": exitstatus == pytest.ExitCode.INTERRUPTED,
            "outcomes": dict(self._outcomes),
        }
        options, folder = self._config.stash[OPTIONS], self._config.invocation_params.dir
        columns = [column for column in columns_of(self._config)[0] if is_users(column)]
        writing: Any = load("pytest_fx.report.written_report")
        self._messages = writing.write(
            run, self._lines, columns, None if options.report is None else folder / options.report,
            self._config.rootpath / FOLDER if options.annotate else None, self._config.rootpath,
        )  # fmt: skip

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the place of the report, and the annotations."""
        for line in self._messages:
            terminalreporter.write_line(line)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _text(report: Any) -> str:
    """Return the text of a failure on the terminal; only the end of a long one."""
    text = str(getattr(report, "longreprtext", ""))
    return text if len(text) <= LONGEST_TEXT else f"… {len(text) - LONGEST_TEXT} characters …\n{text[-LONGEST_TEXT:]}"


def _place(report: Any) -> dict[str, Any]:
    """Return the file and line of the test."""
    file, line, _ = report.location
    return {"file": str(file), "line": (line or 0) + 1}


def _reason(report: Any) -> str:
    representation = report.longrepr
    return str(representation[2] if isinstance(representation, tuple) else representation).removeprefix("Skipped: ")
