"""The verdict on a program of a model in a word."""

from __future__ import annotations

from pytest_fx.report.summary import SummaryRow


def verdict_of(row: SummaryRow) -> str:
    """Return ``"right"``, ``"wrong"``, ``"refused"``, ``"not judged"``, or ``"changes nothing"``."""
    if row.outcome is not None:
        return "refused" if row.outcome == "refuses" else "wrong"
    if row.changed is False:
        return "changes nothing"
    return "right" if row.error is not None else "not judged"
