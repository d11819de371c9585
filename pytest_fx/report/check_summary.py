"""What came of trying passes on random programs, at the end of the run; it travels with the reports of tests."""

from __future__ import annotations

import pytest

from pytest_fx import lines

PROPERTY = "fx-check"
"""The user property that carries a sentence on a test's report."""


def record_check(item: pytest.Item, sentence: str) -> None:
    """Attach what came of a check to the report of ``item``."""
    item.user_properties.append((PROPERTY, sentence))


def write_checks(reporter: pytest.TerminalReporter) -> None:
    """Print a line for each check that found no broken law, or judged nothing; the others have failed, and say more."""
    sentences = [
        str(value)
        for reports in reporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    if sentences:
        reporter.section("fx: passes on random programs")
        for sentence in sentences:
            reporter.write_line(lines.fit(sentence, lines.terminal_width()))
