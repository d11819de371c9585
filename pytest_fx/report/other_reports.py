"""Facts on a test for other reports: properties in JUnit's XML, and the same as text in pytest-html."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_fx.report.rows import FAILURE, PROPERTY, SummaryRow, collect_rows, verdict_of

_SHOWN = ("error", "eager_error", "float64_error", "speedup", "speedup_low", "speedup_high", "verdict", "seconds")
"""Fields of a row that are shown unchanged, if known."""


def flatten_properties(report: Any) -> None:
    """Replace the records on the report of a tear-down, from which JUnit's XML is written, by plain properties.

    XML would have each record as the text of a dict, and the record of a failure is as long as the programs. The report
    of the call still has the records.
    """
    if report.when != "teardown" or not any(name in (PROPERTY, FAILURE) for name, _ in report.user_properties):
        return
    others = [(name, value) for name, value in report.user_properties if name not in (PROPERTY, FAILURE)]
    report.user_properties = [*others, *facts_of(report.user_properties)]


def facts_of(properties: Any) -> Iterator[tuple[str, str]]:
    """Yield the facts on the programs of a test, and on its failure, as names and values."""
    records = [value for name, value in properties if name == PROPERTY]
    call = SimpleNamespace(when="call", user_properties=[(PROPERTY, record) for record in records])
    for row in collect_rows([call]):
        yield from _facts_of_row(row)
    for facts in (value for name, value in properties if name == FAILURE):
        where: Any = facts.get("where") or {}
        place = f"{where['file']}:{where['line']}" if where else None
        properties = {"law": facts["law"], "first wrong node": facts.get("node"), "where": place}
        yield from ((f"fx {name}", str(value)) for name, value in properties.items() if value)


def add_to_html(config: pytest.Config, report: Any) -> None:
    """Attach the facts on a test to its report as text for pytest-html, if that plugin is active."""
    if report.when != "call" or not config.pluginmanager.has_plugin("html"):
        return
    if text := "\n".join(f"{name}: {value}" for name, value in facts_of(report.user_properties)):
        extra = {"name": "fx", "format_type": "text", "content": text, "mime_type": "text/plain", "extension": "txt"}
        report.extras = [*getattr(report, "extras", ()), extra]


def _facts_of_row(row: SummaryRow) -> Iterator[tuple[str, str]]:
    yield "fx model", row.model
    yield "fx program", row.program
    yield "fx result", verdict_of(row)
    if nodes := row.nodes():
        yield "fx nodes", nodes
    for name in _SHOWN:
        value = getattr(row, name)
        if value is not None and (row.outcome is None or not name.startswith(("speedup", "verdict"))):
            yield f"fx {name.replace('_', ' ')}", f"{value:.4g}" if isinstance(value, float) else str(value)
