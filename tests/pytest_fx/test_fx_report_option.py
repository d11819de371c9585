"""--fx-report: a page and raw rows of a run, with what failed, and earlier runs in the same folder."""

from __future__ import annotations

import json
import re

import pytest
from building import data_of

MINE = """
import copy, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.second(x)

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.ones(2, 4),)

def tanh(program):
    program = copy.deepcopy(program)
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.tanh
    program.recompile()
    return program

def same(program):
    return None
"""
RUN = ("--fx-model", "mine:net", "--fx-pass", "mine:tanh", "--fx-pass", "mine:same", "-k", "pass_keeps_its_contract")


def test_the_page_and_its_raw_rows_say_why_and_the_row_does_in_a_line(mine):
    result = mine.runpytest(*RUN, "--fx-no-timing", "--fx-report", "report")
    (facts,) = [line["facts"] for line in rows_of(mine.path / "report" / "rows.jsonl") if line["kind"] == "failure"]
    assert re.fullmatch(r"contract: they are .*; first wrong at %relu \(mine.py:10\)", facts["reason"])
    for label in ("where  output", "value  eager", "allows", "%relu = call_function[torch.tanh]", "a test of"):
        assert label in facts["why"]
    data = data_of((mine.path / "report" / "index.html").read_text("utf-8"))
    assert data["failures"][0]["why"] == facts["why"] and facts["reason"] in data["strings"]
    assert data["failureCount"] == 1
    result.stdout.fnmatch_lines(f"*tanh of mine:net: {facts['reason']}")


def rows_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_run_leaves_a_page_and_its_raw_rows_with_the_failures(mine):
    result = mine.runpytest(*RUN, "--fx-no-timing", "--fx-report", "found/report")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines("fx: the report is found/report/index.html")
    folder = mine.path / "found" / "report"
    run, *lines = rows_of(folder / "rows.jsonl")
    assert {line["schema"] for line in (run, *lines)} == {1}
    assert run["kind"] == "run" and run["outcomes"] == {"failed": 1, "passed": 1}
    assert "--fx-no-timing" in run["arguments"] and not run["interrupted"]
    assert {(line["row"]["model"], line["row"]["program"]) for line in lines if line["kind"] == "row"} == {
        ("mine:net", "tanh"), ("mine:net", "same"),
    }  # fmt: skip
    (failure,) = [line for line in lines if line["kind"] == "failure"]
    facts = failure["facts"]
    assert (facts["model"], facts["program"], facts["law"]) == ("mine:net", "tanh", "contract")
    assert facts["where"]["file"].endswith("mine.py") and facts["where"]["line"] == 10
    assert "torch.relu(" in facts["before"].splitlines()[facts["before_line"] - 1]
    assert "torch.tanh(" in facts["after"].splitlines()[facts["after_line"] - 1]
    assert facts["node_map"]["shape"] == [2, 4] and facts["output_map"]["of"] == "output"
    assert facts["drawing"].startswith("<svg") and "5 -> 5 nodes, " in facts["difference"]
    data = data_of(folder / "index.html")
    assert data["verdicts"] == {"wrong": 1, "changes nothing": 1}
    (entry,) = data["failures"]
    assert entry["code"]["marks"] == [facts["before_line"], facts["after_line"]]
    assert [map_["of"] for map_ in entry["maps"]] == ["relu", "output"] and entry["drawing"]


def test_a_second_run_in_the_same_folder_has_the_first_one_beside_it(mine):
    mine.runpytest(*RUN, "--fx-no-timing", "--fx-report", "report")
    mine.makepyfile(mine=MINE.replace("torch.tanh\n", "torch.relu\n"))
    mine.runpytest(*RUN, "--fx-no-timing", "--fx-report", "report")
    (line,) = rows_of(mine.path / "report" / "history.jsonl")
    assert sorted(row[:3] for row in line["rows"]) == [
        ["mine:net", "same", "changes nothing"], ["mine:net", "tanh", "wrong"]
    ]  # fmt: skip
    data = data_of(mine.path / "report" / "index.html")
    assert data["changes"] == [["verdict", "mine:net", "tanh", "was wrong, is changes nothing"]]


def test_without_it_failures_carry_nothing_and_nothing_is_written(mine):
    result = mine.inline_run(*RUN, "--fx-no-timing", "-q")
    reports = [report for report in result.getreports("pytest_runtest_logreport") if report.failed]
    assert [name for name, _ in reports[0].user_properties if name == "fx-failure"] == []
    assert not list(mine.path.glob("**/index.html"))


def test_it_stays_away_where_nothing_of_the_plugin_is_used(pytester):
    pytester.makepyfile("def test_one(): pass")
    result = pytester.runpytest("--fx-report", "report")
    assert result.ret == 0 and not (pytester.path / "report").exists()


@pytest.mark.thorough
def test_rows_of_workers_and_of_child_processes_arrive(mine):
    for number, how in enumerate((("-n", "1"), ("--fx-isolate",))):
        mine.runpytest(*RUN, "--fx-no-timing", "--fx-report", f"report{number}", *how)
        lines = rows_of(mine.path / f"report{number}" / "rows.jsonl")
        assert [line["facts"]["after_line"] for line in lines if line["kind"] == "failure"] == [3]
        assert sum(line["kind"] == "row" for line in lines) >= 2
        assert ("gw0" if how[0] == "-n" else None) in {line.get("worker") for line in lines if line["kind"] == "row"}


def test_an_interrupted_run_leaves_its_results(mine):
    path = mine.makepyfile(
        "import mine\ndef test_one(fx_equal): fx_equal(mine.tanh)\ndef test_two(): raise KeyboardInterrupt"
    )
    result = mine.inline_run(path, "--fx-model", "mine:net", "--fx-report", "report", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    run, *lines = rows_of(mine.path / "report" / "rows.jsonl")
    assert run["interrupted"] and "failure" in {line["kind"] for line in lines}
    assert data_of(mine.path / "report" / "index.html")["run"]["interrupted"]
