"""--fx-contract, --fx-rtol, --fx-atol: what passes are held to."""

import pytest

CONTRACT = "test_pass_keeps_its_contract"
PASS = ("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", CONTRACT)


def test_a_contract_on_the_command_line_stands_in_for_the_passes_own(user):
    assert user.runpytest(*PASS).ret == 1
    assert user.runpytest(*PASS, "--fx-contract", "approximate(50)").ret == 0
    fused = ("--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "-k", CONTRACT)
    assert user.runpytest(*fused).ret == 0
    result = user.runpytest(*fused, "--fx-contract", "exact")
    assert result.ret == 1
    result.stdout.fnmatch_lines("*exact promises equal bits*")


def test_tolerances_on_the_command_line_are_those_of_close(user):
    # in the working dtype the error of this pass is no rounding, whatever float64 may tolerate
    result = user.runpytest(*PASS, "--fx-rtol", "0.01")
    result.stdout.fnmatch_lines("*times the largest error that eager makes itself*")
    result = user.runpytest(*PASS, "--fx-atol", "1e-4")
    result.stdout.fnmatch_lines("*close(rtol=1e-05, atol=0.0001) allows*")


@pytest.mark.parametrize("option, text", [("--fx-rtol", "-1"), ("--fx-atol", "nan"), ("--fx-atol", "small")])
def test_a_tolerance_that_is_none_is_refused(pytester, option, text):
    result = pytester.runpytest(option, text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"*{option}: must be a number from 0 on, not '{text}'")


def test_an_unknown_contract_is_a_usage_error_that_lists_those_there_are(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-contract", "precise")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: there is no contract 'precise'", "*use exact, close or approximate(DECIBELS)*"]
    )
