"""A verdict rests on something that was compared, on inputs that both sides take, and forgives nothing in silence."""

import pytest
from building import last_run
from catalogue.users import text_of

KEEPS = ("--fx-no-timing", "-k", "test_pass_keeps_its_contract")


@pytest.fixture
def judge(pytester):
    """Run the suite on a model and a pass of the user's, and return the result with the verdict that was recorded."""
    pytester.makepyfile(mine=text_of("compared"))

    def run(model, pass_, *options):
        result = pytester.runpytest("--fx-model", f"mine:{model}", "--fx-pass", pass_, *KEEPS, *options)
        record = last_run(pytester.path)
        return result, record["verdicts"][-1]["verdict"]

    return run


@pytest.mark.parametrize(
    "model, reason",
    [
        ("detector", "all outputs are empty"),
        ("boxes_and_size", "all outputs are empty"),
        ("lost_in_nan", "no output is a finite number"),
    ],
)
def test_a_wrong_pass_without_any_comparison_is_not_judged(judge, model, reason):
    result, verdict = judge(model, "mine:tanh_for_relu")
    result.assert_outcomes(skipped=1)
    assert verdict == "not judged"
    result.stdout.fnmatch_lines(f"fx: not judged: {reason}: tanh-for-relu of mine:{model}")


@pytest.mark.parametrize("option", [("--fx-detect", "1e-4"), ("--fx-strict",)])
def test_a_demanded_verdict_fails_where_nothing_was_compared(judge, option):
    result, _ = judge("detector", "mine:tanh_for_relu", *option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *CoarseVerdict: tanh-for-relu is not judged on *", f"*why *{option[0]} asks for *"])


def test_the_same_pass_is_wrong_where_something_is_compared(judge):
    result, verdict = judge("usual", "mine:tanh_for_relu")
    result.assert_outcomes(failed=1)
    assert verdict == "wrong"


@pytest.mark.parametrize("pass_", ["remove-checks", "mine:refusing"])
def test_inputs_that_only_one_side_takes_are_not_compared(judge, pass_):
    result, verdict = judge("checked", pass_)
    result.assert_outcomes(passed=1)
    assert verdict == "right"


def test_a_program_that_refuses_all_inputs_is_not_judged(judge):
    result, verdict = judge("usual", "mine:refusing_all")
    result.assert_outcomes(skipped=1)
    assert verdict == "not judged"
    result.stdout.fnmatch_lines("fx: not judged: eager and the program both take none of the inputs: *")


def test_a_difference_that_is_forgiven_is_a_verdict_of_its_own(judge):
    result, verdict = judge("rounded", "mine:by_its_inverse")
    result.assert_outcomes(passed=1)
    assert verdict == "right, with a waiver"
    result.stdout.fnmatch_lines(
        ["mine:rounded *by-its-inverse *right, with a waiver*", "fx: right, with a waiver, ill-conditioned*"]
    )
    result, _ = judge("rounded", "mine:by_its_inverse", "--fx-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *CoarseVerdict: by-its-inverse keeps *only with a waiver", "*try *"])


def test_a_rounding_that_the_model_asks_for_is_kept(judge):
    result, verdict = judge("halved", "mine:keep_float32")
    result.assert_outcomes(failed=1)
    assert verdict == "wrong"
