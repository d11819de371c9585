"""--fx-annotate: results of passes are reported to a pull request."""

from __future__ import annotations

import pytest
from test_fx_report_option import MINE, RUN


def test_a_run_annotates_at_the_users_line_and_writes_a_summary(pytester, monkeypatch):
    monkeypatch.setenv("CI", "1")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    pytester.makepyfile(mine=MINE)
    result = pytester.runpytest(*RUN, "--fx-no-timing", "--fx-annotate")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (annotation,) = [line for line in result.outlines if line.startswith("::error ")]
    assert annotation.startswith(
        "::error file=mine.py,line=10,title=tanh is wrong on mine%3Anet::law 'contract': tanh changes"
    )
    assert "%0Avalue  eager " in annotation and "%0Athe first node that goes wrong:%0A" in annotation
    result.stdout.fnmatch_lines(["FAILED fx::* - contract: they are *", "fx: 1 of 2 program(s) wrong*"])
    result.stdout.fnmatch_lines("fx: the summary is step.md")
    text = (pytester.path / "step.md").read_text("utf-8")
    assert "  - why they are " in text and "  - the first node that goes wrong:" in text
    assert "| mine:net | tanh | wrong | 5 → 5 |" in text and "1 row(s) changed nothing." in text
    assert not list(pytester.path.glob("**/index.html"))


def test_without_it_nothing_is_annotated(pytester, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    result = pytester.runpytest("--fx-model", "mlp", "-k", "well_formed")
    assert not (pytester.path / "step.md").exists()
    result.stdout.no_fnmatch_line("::*")
