"""The plugin beside pytest-xdist."""

import pytest

pytest.importorskip("xdist")


def test_rows_of_all_workers_are_in_one_table_and_nothing_is_timed(user):
    options = ("--fx-model", "mine:pair", "--fx-model", "mlp", "--fx-pass", "mine:approximate_scaled")
    result = user.runpytest_subprocess(*options, "-n", "2", "-rs", "-k", "contract or timing or eager")
    assert result.ret == 0
    result.stdout.fnmatch_lines("SKIPPED*times taken beside other workers mean nothing: run without -n")
    result.stdout.re_match_lines_random(
        [
            r"mine:pair +capture +5 .*float32.*",
            r"mine:pair +approximate-scaled +5 -> 5 .*float32.*",
            r"mlp +approximate-scaled .*float32.*",
        ]
    )


def test_an_unknown_model_ends_the_run_before_workers_start(pytester):
    result = pytester.runpytest_subprocess("--fx-model", "resnet5", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*did you mean 'resnet50'*")
