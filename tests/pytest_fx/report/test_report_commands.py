"""python -m pytest_fx: the parts of a run put together, and two runs compared."""

from __future__ import annotations

import json
import random

import pytest
from building import data_of
from made_up_runs import made_up_run, timed

from pytest_fx.records.baseline import read_baseline
from pytest_fx.report.columns import SummaryColumn
from pytest_fx.report.report_commands import main
from pytest_fx.report.reported_run import EarlierRun, ReportedEntry, read_history, read_run, write_history
from pytest_fx.report.run_comparison import changes_between


def run(*arguments: object) -> tuple[int, str]:
    output: list[str] = []
    return main([str(argument) for argument in arguments], output.append), "".join(output)


@pytest.fixture
def shards(tmp_path):
    """Two halves of a run, and the whole."""
    whole = made_up_run(40, 3)
    for number, name in enumerate(("one", "two")):
        part = made_up_run(40, 3, name=name)
        part.lines = [line for line in whole.lines if int(line["test"].rpartition("_")[2]) % 2 == number]
        part.write(tmp_path / name)
    return tmp_path


def test_parts_of_a_run_become_one_report(shards):
    status, output = run("merge", shards / "one", shards / "two", "-o", shards / "all")
    assert status == 0
    assert output == f"{shards / 'all' / 'index.html'}: 2 part(s), " + output.partition("part(s), ")[2]
    assert sorted(output.strip().partition("part(s), ")[2].split(", ")) == [
        "28 right", "4 changes nothing", "4 refused", "4 wrong"
    ]  # fmt: skip
    merged, whole = read_run(shards / "all"), made_up_run(40, 3)
    assert merged.entries() == whole.entries()
    assert merged.run["parts"] == 2 and len(merged.failures()) == 3
    assert data_of((shards / "all" / "index.html").read_text("utf-8"))["run"]["parts"] == 2


def test_of_a_test_in_several_parts_the_last_counts(shards):
    status, _ = run("merge", shards / "one", shards / "one", shards / "two", "-o", shards / "all")
    assert status == 0 and len(read_run(shards / "all").lines) == len(made_up_run(40, 3).lines)


def test_two_runs_are_compared_row_by_row(tmp_path):
    made_up_run(40, 0).write(tmp_path / "before")
    now = made_up_run(40, 0)
    now.lines[1]["row"]["outcome"] = "wrong: contract"
    for name in ("speedup", "speedup_low", "speedup_high"):
        now.lines[3]["row"][name] *= 0.8
    now.lines[5]["row"]["program"] = "other"
    now.write(tmp_path / "now")
    status, output = run("compare", tmp_path / "before", tmp_path / "now", "-o", tmp_path / "both.html")
    lines = output.splitlines()
    assert status == 1
    assert lines[0] == "verdict pass-1 of model0: was right, is wrong"
    assert lines[1].startswith("slower  pass-3 of model0: +25.0% time, relative to eager (+")
    assert lines[2:] == [
        "gone    pass-5 of model0: was right", "new     other of model0: right", "4 change(s) in 40 row(s)",
        str(tmp_path / "both.html"),
    ]  # fmt: skip
    assert len(data_of((tmp_path / "both.html").read_text("utf-8"))["changes"]) == 4


def test_a_run_compared_with_itself_has_no_changes(tmp_path):
    made_up_run(40, 0).write(tmp_path)
    assert run("compare", tmp_path, tmp_path) == (0, "0 change(s) in 40 row(s)\n")


def with_columns(run_, *columns):
    """A run with columns of users: ``(heading, cell, is_compared)``."""
    run_.add_columns([SummaryColumn(heading, cell, is_compared=compared) for heading, cell, compared in columns])
    return run_


def test_columns_of_users_are_compared_except_measured_ones(tmp_path):
    columns = ["calls", lambda row: 3, True], ["clock", lambda row: "1 s", False]
    with_columns(made_up_run(3, 0), *columns).write(tmp_path / "before")
    now = ["calls", lambda row: 4 if row.program == "pass-1" else 3, True], ["clock", lambda row: "2 s", False]
    later = with_columns(made_up_run(3, 0), *now, ["new one", lambda row: "x", True])
    later.write(tmp_path / "now")
    status, output = run("compare", tmp_path / "before", tmp_path / "now")
    assert (status, output) == (0, "column  pass-1 of model0: calls was 3, is 4\n1 change(s) in 3 row(s)\n")
    write_history(tmp_path, [EarlierRun.of(read_run(tmp_path / "before"))])
    (earlier,) = read_history(tmp_path)
    entries = later.entries()
    assert [str(change) for change in changes_between(earlier.entries, entries)] == [
        "pass-1 of model0: calls was 3, is 4"
    ]


def test_a_history_of_an_earlier_version_has_no_columns_and_is_read(tmp_path):
    write_history(tmp_path, [EarlierRun.of(made_up_run(3, 0))])
    assert '"columns"' not in (tmp_path / "history.jsonl").read_text("utf-8")
    (earlier,) = read_history(tmp_path)
    assert [dict(entry.columns) for entry in earlier.entries.values()] == [{}] * 3
    line = json.loads((tmp_path / "history.jsonl").read_text("utf-8"))
    for damaged in (3, [{}], [3, 4, 5]):
        (tmp_path / "history.jsonl").write_text(json.dumps(line | {"columns": damaged}) + "\n", "utf-8")
        assert len(read_history(tmp_path)[0].entries) == 3


def test_parts_of_a_run_keep_the_columns_of_users(shards):
    for name, heading in (("one", "calls"), ("two", "size")):
        with_columns(read_run(shards / name), [heading, lambda row: row.program, True]).write(shards / name)
    run("merge", shards / "one", shards / "two", "-o", shards / "all")
    merged = read_run(shards / "all")
    assert merged.headings() == ["calls", "size"]
    columns = {row.row.program: dict(row.columns) for row in merged.rows()}
    assert (columns["pass-0"], columns["pass-1"]) == ({"calls": "pass-0"}, {"size": "pass-1"})
    assert data_of((shards / "all" / "index.html").read_text("utf-8"))["own"] == ["calls", "size"]


def test_of_two_equal_programs_at_most_one_in_forty_seems_slower():
    chance = random.Random(0)

    def entries(count: int) -> dict[tuple[str, str], ReportedEntry]:
        entry_of: dict[tuple[str, str], ReportedEntry] = {}
        for number in range(count):
            timing = timed([chance.lognormvariate(0, 0.05) for _ in range(30)])
            entry_of["model", str(number)] = ReportedEntry(
                "model", str(number), "right", "host", timing.speedup, *timing.interval
            )
        return entry_of

    before, now = entries(60), entries(60)
    slower = [change for change in changes_between(before, now) if change.kind == "slower"]
    assert len(slower) / 60 <= 0.025


def test_measurements_of_another_host_are_not_compared():
    before = {("m", "p"): ReportedEntry("m", "p", "right", "one", 2.0, 1.99, 2.01)}
    now = {("m", "p"): ReportedEntry("m", "p", "right", "two", 1.0, 0.99, 1.01)}
    assert changes_between(before, now) == []
    assert [
        change.kind
        for change in changes_between(before, {("m", "p"): ReportedEntry("m", "p", "right", "one", 1.0, 0.99, 1.01)})
    ]


def test_a_folder_without_a_report_and_a_later_schema_are_refused(tmp_path):
    assert run("merge", tmp_path / "none", "-o", tmp_path / "all") == (
        2,
        f"ReportError: there is no report in {tmp_path / 'none'}\n  why    it has no rows.jsonl\n"
        "  try    pytest … --fx-report DIR\n",
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": 9, "kind": "run"}) + "\n", "utf-8")
    assert run("compare", tmp_path, tmp_path) == (
        2,
        f"ReportError: {tmp_path / 'rows.jsonl'} cannot be read\n"
        "  why    its schema is 9, and this version reads up to 1\n"
        "  try    read it with the version of pytest-fx that wrote it\n",
    )
    (tmp_path / "rows.jsonl").write_text("nothing\n", "utf-8")
    assert "no line is on a run" in run("compare", tmp_path, tmp_path)[1]


def test_lines_that_are_cut_off_or_of_another_kind_are_left_out(tmp_path):
    made_up_run(4, 0).write(tmp_path)
    with (tmp_path / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"schema": 1, "kind": "row", "test": "t", "row": {"model": 3, "program": "p"}}\n')
        file.write('{"schema": 1, "kind": "row", "test": "t", "row": {"model": "m", "program": "p", "later": 1}}\n')
        file.write('{"schema": 2, "kind": "row"}\n{"schema": 1, "ki')
    assert list(read_run(tmp_path).entries())[4:] == [("m", "p")]


def test_rows_are_a_baseline_too(tmp_path):
    run_ = made_up_run(4, 0)
    info = {"model": "model0", "pass": "pass-0", "batch": 1, "dtype": "float32", "device": "cpu", "threads": 1}
    run_.lines[0]["timing"]["info"] = {**info, "speedup": 1.2, "speedup_interval": [1.1, 1.3]}
    run_.write(tmp_path)
    (measurement,) = read_baseline(tmp_path / "rows.jsonl", "rows.jsonl").measurements.values()
    assert (measurement.program, measurement.speedup, measurement.host) == ("pass-0", 1.2, "quiet")


def test_lines_of_a_history_that_hold_something_else_are_left_out(tmp_path):
    write_history(tmp_path, [EarlierRun.of(made_up_run(4, 0))])
    with (tmp_path / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"schema": 1, "kind": "history", "run": {}, "rows": [["m"], 3, ["m", "p", 4, 0, 0, 0, 0]]}\n{')
    first, second = read_history(tmp_path)
    assert len(first.entries) == 4 and second.entries == {}
