"""pytest_fx.report.rows: the verdict on each program of a model, in a word."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from catalogue.users import text_of
from test_summary import report

from pytest_fx.report.rows import SummaryRow, collect_rows, verdict_of

ROW = SummaryRow("model", "fuse", changed=True)


@pytest.mark.parametrize(
    "known, verdict",
    [
        ({"kept": True}, "right"),
        ({}, "not judged"),
        ({"kept": True, "outcome": "wrong: contract"}, "wrong"),
        ({"outcome": "raises ValueError"}, "wrong"),
        ({"outcome": "takes too long"}, "wrong"),
        ({"outcome": "fails", "kept": True}, "wrong"),
        ({"outcome": "refuses"}, "refused"),
        ({"outcome": "not judged: torch.fx breaks 'state'"}, "not judged"),
        ({"changed": False}, "changes nothing"),
        ({"changed": False, "outcome": "wrong: process"}, "wrong"),
        ({"speedup": 2.0, "verdict": "faster"}, "not judged"),
    ],
)
def test_a_program_is_right_only_where_that_was_shown(known, verdict):
    assert verdict_of(replace(ROW, **known)) == verdict


def test_a_program_is_wrong_if_one_of_its_tests_fails_before_it_says_why():
    (row,) = collect_rows([report(replace(ROW, kept=True)), report(ROW, failed=True)])
    assert verdict_of(row) == "wrong"


@pytest.mark.parametrize(
    "failed", [report(replace(ROW, kept=True), failed=True), report(ROW, failed=True, timing={"info": {}})]
)
def test_a_test_that_fails_for_another_reason_leaves_the_verdict_as_it_is(failed):
    (row,) = collect_rows([report(replace(ROW, kept=True)), failed])
    assert verdict_of(row) == "right"


def verdicts(pytester, *options):
    """The verdicts of a run on the faulty models and passes, by program."""
    pytester.makepyfile(faults=text_of("faults"))
    result = pytester.inline_run("--fx-no-timing", "-p", "no:cacheprovider", *options)
    reports = [getcall.report for getcall in result.getcalls("pytest_runtest_logreport")]
    return {row.program: verdict_of(row) for row in collect_rows(reports)}


def test_the_suite_judges_each_program(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.failures.explanation.find_part", lambda *given: None)  # which takes seconds
    options = (
        "--fx-pass",
        "faults:OperatorsForFunctions",
        "--fx-pass",
        "fuse-conv-bn",
        "-k",
        "pass_keeps_its or test_capture_equals",
    )
    assert verdicts(pytester, "--fx-model", "faults:gated", *options) == {
        "capture": "right",
        "operators-for-functions": "wrong",
        "fuse-conv-bn": "changes nothing",
    }


def test_a_capture_with_other_code_when_it_is_unpickled_is_wrong(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.suites.model_suite.unpickled", lambda program: SimpleNamespace(code=""))
    options = ("--fx-model", "mlp", "-k", "capture_equals_eager or pickle_equals_eager")
    assert verdicts(pytester, *options) == {"capture": "wrong"}


def test_a_capture_that_no_test_calls_is_not_judged_and_one_that_is_refused_says_so(pytester):
    pytester.makepyfile(
        mine="""
        import torch

        class Branching(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        def branching():
            return Branching(), torch.ones(2)
        """
    )
    options = ("-k", "well_formed", "--fx-capture", "symbolic")
    assert verdicts(pytester, "--fx-model", "mlp", *options) == {"capture": "not judged"}
    assert verdicts(pytester, "--fx-model", "mine:branching", *options) == {"capture": "refused"}


INDICES = """
import torch
from torch import nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(x).argmax(1)

def classifier():
    torch.manual_seed(0)
    return Classifier().eval(), (torch.randn(8, 4),)

def smallest(program):
    for node in program.graph.find_nodes(op="call_method", target="argmax"):
        node.target = "argmin"
    program.recompile()

def test_wrong(fx_equal):
    fx_equal(smallest)
"""


def test_indices_have_no_map_of_errors_and_the_line_of_a_failed_test_has_the_reason(pytester, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    pytester.makepyfile(test_mine=INDICES)
    options = ("--fx-model", "test_mine:classifier", "--fx-report", "report", "-p", "no:cacheprovider")
    result = pytester.runpytest("test_mine.py", *options)
    result.stdout.fnmatch_lines(
        "FAILED test_mine.py::test_wrong* - contract: * first wrong at %argmax (test_mine.py:*)"
    )
    lines = (pytester.path / "report" / "rows.jsonl").read_text("utf-8").splitlines()
    (facts,) = [line["facts"] for line in map(json.loads, lines) if line["kind"] == "failure"]
    assert "output_map" not in facts and "node_map" not in facts
