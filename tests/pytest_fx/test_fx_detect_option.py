"""--fx-detect: the smallest change of outputs that a green verdict would have caught, and its verification."""

from building import last_run

OWN = """
from building import Scaled

def test_own(fx_model, fx_equal):
    fx_equal(Scaled(fx_model.fresh(), 1.0 + {by}))
"""


def test_the_table_shows_which_faults_a_green_verdict_would_have_caught(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "-v", pytester.makepyfile(OWN.format(by=1e-7)))
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r".*error \(by rounding\) +detects", r"mlp +test_own\S* .* allowed +\d\.\de-0[67]"])
    row = last_run(pytester.path)["records"][-1]["row"]
    assert 0 < row["detects"] <= row["detects_largest"] < 1e-5
    assert row["detects_median"] >= row["detects"]


def test_a_verdict_that_would_have_caught_less_than_requested_fails(pytester):
    path = pytester.makepyfile(OWN.format(by=1e-7))
    pytester.runpytest("--fx-model", "mlp", "--fx-detect", "1e-4", path).assert_outcomes(passed=1)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-dtype", "bfloat16", "--fx-detect", "1e-4", path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *CoarseVerdict: test_own* keeps close(*) on mlp, but so would outputs that are off by *",
         "E *try *--fx-dtype*"]
    )  # fmt: skip


def test_a_line_warns_of_verdicts_that_would_have_caught_little(pytester):
    path = pytester.makepyfile(OWN.format(by=0.0))
    result = pytester.runpytest("--fx-model", "mlp", "--fx-dtype", "bfloat16", path)
    result.assert_outcomes(passed=1)
    line = "fx: 1 of 1 row(s) would not have caught outputs that are off by a thousandth, test_own* of mlp none below *"
    result.stdout.fnmatch_lines(line)
    assert "would not have caught" not in pytester.runpytest("--fx-model", "mlp", path).stdout.str()
