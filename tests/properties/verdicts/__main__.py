"""``make verdicts``: ask the harness of every case, and write the table ``results/verdicts.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

from . import CASES, Case
from .laws_asked import laws_asked_table

RESULT = Path("results/verdicts.md")


def table(rows: list[tuple[Case, str]]) -> str:
    """Return the page: each case with its report."""
    right = sum(row.is_right(reported) for row, reported in rows)
    lines = [
        "# Verdicts",
        "",
        f"`make verdicts` on {describe(describe_machine())}. The verdicts on passes, models and runs that",
        "were once judged wrongly, and on similar right ones.",
        "",
        f"**{right} of {len(rows)} verdicts are right.**",
        "",
        "| about | case | right | found |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.item} | {row.says} | {row.expected} | {reported if row.is_right(reported) else f'**{reported}**'} |"
        for row, reported in rows
    ]
    lines += ["", "## Every law by every kind of subject", "", laws_asked_table().rstrip()]
    return "\n".join(lines) + "\n"


def main(wanted: str = "") -> int:
    """Write the page, or print the cases about one thing; 1 if a verdict is wrong."""
    rows: list[tuple[Case, str]] = []
    for case in CASES:
        if wanted in case.item:
            rows.append((case, case.judge()))
            print(
                "right" if case.is_right(rows[-1][1]) else "WRONG",
                case.item,
                case.says,
                rows[-1][1],
                sep=" | ",
                flush=True,
            )
    if not wanted:
        write_atomically(RESULT, table(rows))
    return int(not all(row.is_right(reported) for row, reported in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
