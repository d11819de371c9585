"""pytest_fx.hooks: models, passes, contracts, vetoes and columns from a conftest.py."""

import json
import re

import pytest

CONTRACT = "test_pass_keeps_its_contract"


def test_models_and_passes_of_a_conftest_are_known_by_name_and_no_compiler_is_loaded_for_them(pytester):
    pytester.makeconftest(
        """
        import sys
        import torch
        from model_zoo import ZooModel

        def leave_alone(program):
            return program

        def pytest_fx_register(config):
            inputs = lambda batch=1, seed=0: (torch.ones(batch, 2),)
            yield ZooModel("model_of_a_conftest", lambda: torch.nn.Linear(2, 2).eval(), inputs, "here")
            yield leave_alone

        def pytest_unconfigure():
            print("with Dynamo" if "torch._dynamo" in sys.modules else "without Dynamo")
        """
    )
    result = pytester.runpytest_subprocess(
        "--fx-model", "model_of_a_conftest", "--fx-pass", "leave-alone", "-k", CONTRACT, "-v"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*{CONTRACT}?model_of_a_conftest-leave-alone? PASSED*", "without Dynamo"])


def test_a_contract_of_a_conftest_comes_before_the_command_lines(user):
    run = ("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", CONTRACT, "--fx-contract", "exact")
    assert user.runpytest(*run).ret == 1
    user.makeconftest(
        """
        from fx.passes import approximate, close

        def pytest_fx_contract(model, pass_, contract):
            assert contract == close
            return approximate(sqnr_db=40) if (model, pass_.__name__) == ("mine:pair", "scaled") else None
        """
    )
    assert user.runpytest(*run).ret == 0
    assert user.runpytest(*run[:3], "mine:unchanged", *run[4:]).ret == 0


def test_a_contract_of_a_conftest_may_be_a_text(user):
    run = ("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", CONTRACT)
    user.makeconftest("def pytest_fx_contract(model): return 'approximate(40)'")
    assert user.runpytest(*run).ret == 0
    user.makeconftest("def pytest_fx_contract(model): return 'approximate(80)'")
    assert user.runpytest(*run).ret == 1
    user.makeconftest("def pytest_fx_contract(model): return 'aproximate'")
    result = user.runpytest(*run)
    assert result.ret == 1
    result.stdout.fnmatch_lines("E *CannotLoadError: there is no contract 'aproximate'")


def test_a_vetoed_combination_is_skipped_with_the_reason(user):
    user.makeconftest(
        """
        def pytest_fx_veto(model, pass_name):
            return "not on this one" if (model, pass_name) == ("mine:pair", "mine:scaled") else None
        """
    )
    models = ("--fx-model", "mine:pair", "--fx-model", "mine:zoo")
    result = user.runpytest(
        *models, "--fx-pass", "mine:scaled", "--fx-contract", "approximate(10)", "-k", CONTRACT, "-rs"
    )
    result.assert_outcomes(passed=1, skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines("SKIPPED*not on this one")


def test_columns_of_a_conftest_come_after_the_plugins(pytester):
    pytester.makeconftest(
        """
        from pytest_fx.report.summary import SummaryColumn

        def pytest_fx_summary_columns():
            return [SummaryColumn("shout", lambda row: row.model.upper())]
        """
    )
    result = pytester.runpytest("--fx-model", "mlp", "-k", "capture_equals_eager")
    result.stdout.fnmatch_lines(["model *program *verdict *shout", "mlp *capture * MLP"])


COLUMNS = """
from pytest_fx.report.summary import SummaryColumn

def inverse(row):
    return 1 / (row.nodes_after - 5)

def pytest_fx_summary_columns():
    return [
        SummaryColumn("shout", lambda row: row.model.upper()),
        SummaryColumn("nodes", lambda row: row.nodes_after, is_compared=False),
        SummaryColumn("share", inverse),
    ]
"""
CAPTURE = ("--fx-model", "mine:pair", "--fx-no-timing", "-k", "capture_equals_eager")


def test_columns_of_a_conftest_are_in_the_report_and_in_the_summary_of_a_pull_request(user, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    user.makeconftest(COLUMNS)
    user.runpytest(*CAPTURE, "--fx-report", "report", "--fx-annotate")
    run, *lines = map(json.loads, (user.path / "report" / "rows.jsonl").read_text("utf-8").splitlines())
    assert [(column["heading"], column["compared"]) for column in run["columns"]] == [
        ("shout", True), ("nodes", False), ("share", True)
    ]  # fmt: skip
    expected_columns = {"shout": "MINE:PAIR", "nodes": "5", "share": "raises ZeroDivisionError"}
    assert [line["columns"] for line in lines if "columns" in line] == [expected_columns]
    data = re.search(r'id="data">(.*?)</script>', (user.path / "report" / "index.html").read_text("utf-8"), re.DOTALL)
    page = json.loads(data[1])
    row = dict(zip(page["fields"], page["rows"][0], strict=True))
    assert dict(zip(page["own"], (page["strings"][place] for place in row["own"]), strict=True)) == expected_columns
    markdown = (user.path / ".pytest_fx" / "summary.md").read_text("utf-8").splitlines()
    assert markdown[2].endswith(" speed-up (95 % interval) | shout | nodes | share |")
    assert markdown[4].endswith(" | MINE:PAIR | 5 | raises ZeroDivisionError |")


def test_a_column_that_raises_fails_only_its_cell_which_shows_the_line(user):
    user.makeconftest(COLUMNS)
    result = user.runpytest(*CAPTURE)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "mine:pair *capture *right *MINE:PAIR *5 *raises ZeroDivisionError",
            "fx: the column 'share' raises ZeroDivisionError: division by zero for capture of mine:pair",
            "  where  *conftest.py:4, in inverse:  return 1 / (row.nodes_after - 5)",
        ]
    )


@pytest.mark.parametrize(
    "body, told",
    [
        ("return 3", ["fx: pytest_fx_summary_columns gives 3, which is no SummaryColumn"]),
        ("return ['shout']", ["fx: pytest_fx_summary_columns gives 'shout', which is no SummaryColumn"]),
        (
            "return shout",
            [
                "fx: pytest_fx_summary_columns raises NameError: name 'shout' is not defined; *without its columns",
                "  where  *conftest.py:1, in pytest_fx_summary_columns:  *",
            ],
        ),
    ],
)
def test_a_hook_that_gives_no_columns_is_reported_and_the_table_is_printed(user, body, told):
    user.makeconftest(f"def pytest_fx_summary_columns(): {body}")
    result = user.runpytest(*CAPTURE)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["mine:pair *capture *right*", *told])


@pytest.mark.parametrize("hook", ["register", "contract", "tracer", "capture", "veto", "summary_columns"])
def test_every_hook_is_documented_with_an_example(hook):
    from pytest_fx import hooks

    text = getattr(hooks, f"pytest_fx_{hook}").__doc__
    assert f"def pytest_fx_{hook}(" in text
    assert "::\n" in text
