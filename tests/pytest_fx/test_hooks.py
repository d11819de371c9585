"""pytest_fx.hooks: models, passes, contracts, vetoes and columns from a conftest.py."""

import pytest

CONTRACT = "test_pass_keeps_its_contract"


def test_models_and_passes_of_a_conftest_are_known_by_name(pytester):
    pytester.makeconftest(
        """
        import torch
        from model_zoo import ZooModel

        def leave_alone(program):
            return program

        def pytest_fx_register(config):
            inputs = lambda batch=1, seed=0: (torch.ones(batch, 2),)
            yield ZooModel("model_of_a_conftest", lambda: torch.nn.Linear(2, 2).eval(), inputs, "here")
            yield leave_alone
        """
    )
    result = pytester.runpytest_subprocess(
        "--fx-model", "model_of_a_conftest", "--fx-pass", "leave-alone", "-k", CONTRACT, "-v"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(f"*{CONTRACT}?model_of_a_conftest-leave-alone? PASSED*")


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


def test_columns_of_a_conftest_stand_behind_the_plugins(pytester):
    pytester.makeconftest(
        """
        from pytest_fx.report.summary import SummaryColumn

        def pytest_fx_summary_columns():
            return [SummaryColumn("shout", lambda row: row.model.upper())]
        """
    )
    result = pytester.runpytest("--fx-model", "mlp", "-k", "capture_equals_eager")
    result.stdout.fnmatch_lines(["model *program *verdict *shout", "mlp *capture * MLP"])


@pytest.mark.parametrize("hook", ["register", "contract", "tracer", "capture", "veto", "summary_columns"])
def test_every_hook_is_documented_with_an_example(hook):
    from pytest_fx import hooks

    text = getattr(hooks, f"pytest_fx_{hook}").__doc__
    assert f"def pytest_fx_{hook}(" in text
    assert "::\n" in text
