"""pytest_fx.report.pull_request: annotations and the summary of a pull request."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import HOSTILE, made_up_failure, made_up_run

from pytest_fx.report.pull_request import MOST_BYTES, annotations_of, summary_of, write_summary_file
from pytest_fx.report.reported_run import EarlierRun
from pytest_fx.report.run_comparison import RowChange

ROOT = Path("/checkout")


@pytest.fixture(autouse=True)
def _no_checkout_of_github(monkeypatch):
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def test_a_file_outside_of_the_checkout_is_not_named():
    run = made_up_run(0, 0)
    run.lines.append(made_up_failure("t", "m", "p"))
    for file in ("../elsewhere/net.py", "/usr/lib/net.py"):
        run.lines[-1]["facts"]["where"]["file"] = file
        assert annotations_of(run, [], ROOT)[0].startswith("::error title=p is wrong on m::")


def test_a_failure_is_annotated_at_the_users_line():
    run = made_up_run(10, 1)
    run.lines[-1]["facts"]["where"]["file"] = "/checkout/nets/net.py"
    assert annotations_of(run, [RowChange("slower", "net", "fuse", "+9.0% time")], ROOT) == [
        "::error file=nets/net.py,line=7,title=pass-7 is wrong on model0::law 'contract': pass-7 changes model0%0A"
        "first wrong node: %25a30 = call_module[layer30](%25a29)",
        "::warning title=pytest-fx%3A slower::fuse of net: +9.0%25 time",
    ]


def test_paths_are_those_of_the_checkout_where_tests_run_below_it(monkeypatch):
    monkeypatch.setenv("GITHUB_WORKSPACE", "/checkout")
    run = made_up_run(0, 0)
    run.lines.append(made_up_failure("t.py::test", "m", "p") | {"facts": None})
    (message,) = annotations_of(run, [], ROOT / "part")
    assert message == (
        "::error file=part/test_it.py,line=3,title=t.py%3A%3Atest failed::LawViolation: p changes what m computes"
    )


def test_names_cannot_give_commands_of_their_own():
    run = made_up_run(0, 0)
    hostile = "a\n::add-mask::b\r::error::c,d:e%0A"
    run.lines.append(made_up_failure(hostile, hostile, hostile))
    (message,) = annotations_of(run, [], ROOT)
    assert (
        "\n" not in message
        and "\r" not in message
        and message.startswith("::error file=net.py,line=7,title=a%0A%3A%3Aadd-")
    )
    assert "%250A" in message


def test_of_many_failures_ten_are_annotated_and_the_last_counts_the_others():
    messages = annotations_of(made_up_run(400, 40), [], ROOT)
    assert len(messages) == 10 and messages[-1] == "::error title=pytest-fx::31 more failures are in the summary"


def test_the_summary_has_failures_changes_and_rows_with_the_earlier_run_beside_them():
    before, now = made_up_run(10, 1), made_up_run(10, 1)
    before.lines[0]["row"]["outcome"] = "wrong: contract"
    text = summary_of(now, EarlierRun.of(before))
    assert text.startswith("## pytest-fx: 7 right, 1 wrong, 1 changes nothing, 1 refused\n\n### 1 failure(s)\n")
    assert "- **pass-7 of model0**: law 'contract': pass-7 changes model0; %a30 = call\\_module" in text
    assert "### Since 2026-01-02 03:04, commit abc1234: 1 change(s)\n\n- verdict: pass-0 of model0: was" in text
    assert "| model0 | pass-1 | right | 50 → 40 | 3.2e-06 (2.1e-06) |  | right |\n" in text
    assert "1 row(s) changed nothing.\n" in text and "before |" not in summary_of(now)
    assert "cut" not in text


def test_a_summary_that_would_be_dropped_is_cut_and_says_so():
    run = made_up_run(2_000, 100)
    text = summary_of(run, limit=100_000)
    assert len(text.encode()) <= 100_000 and MOST_BYTES < 2**20
    notice = next(line for line in text.splitlines() if line.startswith("> "))
    assert notice.startswith("> **This summary is cut: ") and text.index(notice) < 300
    whole = summary_of(run, limit=10**9)
    left_out = int(notice.split(": ")[1].split()[0])
    assert left_out == len(whole.splitlines()) - len(text.splitlines()) + 2


def test_names_are_no_markup_in_the_summary():
    run = made_up_run(1, 0)
    run.lines[0]["row"].update(model=f"{HOSTILE}|`*\n# a", program="@somebody [a](b)")
    text = summary_of(run)
    assert "<script" not in text and "<img" not in text and "\n# a" not in text
    assert "\\|\\`\\* \\# a" in text and "\\@somebody \\[a\\](b)" in text


def test_github_names_the_file_and_other_steps_stay_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert write_summary_file("one\n", tmp_path / "new") == tmp_path / "new" / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    (tmp_path / "step.md").write_text("before\n", "utf-8")
    write_summary_file("one\n", tmp_path)
    assert (tmp_path / "step.md").read_text("utf-8") == "before\none\n"
