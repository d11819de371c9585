"""The museum: what a reproducer's file says, and how its outcome is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.museum.__main__ import ABSENT, FAULTS, MENDED, OTHER, THERE, Exhibit, read, state_of, write

MOST_LINES = 22


@pytest.mark.parametrize("path", sorted(FAULTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_reproducer_is_short_and_says_what_is_wrong_where(path: Path) -> None:
    exhibit = read(path)
    assert exhibit.lines <= MOST_LINES
    assert exhibit.report.startswith(("https://", "not "))


@pytest.mark.parametrize(
    "code, state",
    [
        ("assert 1 == 2, 'wrong'", THERE),
        ("assert 1 == 1", MENDED),
        ("import a_package_that_nobody_has", ABSENT),
        ("raise TypeError('no such argument')", OTHER),
        ("import subprocess\nsubprocess.run(7)", OTHER),
    ],
    ids=["its assertion fails", "it holds", "no package", "it raises", "an error in a library"],
)
def test_the_outcome_of_a_reproducer(tmp_path: Path, code: str, state: str) -> None:
    path = tmp_path / "fault.py"
    path.write_text(code, encoding="utf-8")
    assert state_of(path)[0] == state


def test_the_report_has_a_row_for_each_fault() -> None:
    exhibit = Exhibit("some_fault", "Something is wrong.", "torch.fx", "values", "not found", 9)
    text = write([(exhibit, THERE)])
    assert "1 faults: 1 still there" in text
    assert "| [Something is wrong](../tests/museum/faults/some_fault.py) | torch.fx | values | still there |" in text
