"""--fx-fail-slower: a program that became slower than in an earlier run fails its test."""

import pytest

TIMING = """
import pytest

def test_timing(fx_traced, fx_timing):
    fx_timing(fx_traced, label="capture")
"""
OPTIONS = ("--fx-model", "mlp", "--fx-rounds", "5", "--fx-baseline", "main.json", "-v")


def test_a_program_that_became_slower_fails_with_both_speedups_the_limit_and_the_machines(pytester, baseline):
    baseline(1000.0, 990.0, 1010.0)
    result = pytester.runpytest(*OPTIONS, "--fx-fail-slower", "5%", pytester.makepyfile(TIMING))
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E +pytest_fx.errors.TimingRegression: capture on mlp takes [\d.]+% longer, relative to eager, than in .+",
            r"E +where  batch 1, float32, cpu, 1 thread\(s\)",
            r"E +value  speed-up now [\d.]+ \([\d.]+ to [\d.]+\) on .+, torch .+",
            r"E +in the baseline 1000.000 \(990.000 to 1010.000\) on an older machine, torch 2.10.0, commit abc1234",
            r"E +why    the 95 % interval of the slowdown is \+[\d.]+% to \+[\d.]+%, above the limit of 5.0%; "
            r"2 more measurements did not show less",
            r"E +try    find the commit with git bisect, or accept it by making a new baseline",
        ]
    )
    result.stdout.fnmatch_lines(["mlp *capture *slower*"])  # measured all the same


@pytest.mark.parametrize(
    "row, limit",
    [((0.001, 0.0009, 0.0011), "0%"), ((1.0, 1e-4, 1e4), "0%"), ((1000.0, 990.0, 1010.0), "100000000%")],
    ids=["faster", "wide interval", "slower within the limit"],
)
def test_a_program_that_is_not_shown_to_be_slower_than_the_limit_passes(pytester, baseline, row, limit):
    baseline(*row)
    result = pytester.runpytest(*OPTIONS, "--fx-fail-slower", limit, pytester.makepyfile(TIMING))
    result.assert_outcomes(passed=1)


def test_a_slowdown_that_is_not_seen_again_passes(pytester, baseline):
    baseline()
    path = pytester.makepyfile(
        """
        import pytest_fx.checks.timing_check
        from pytest_fx.timing.paired import PairedTiming

        def test_timing(fx_traced, fx_timing, monkeypatch):
            eager = iter([(1.0,) * 5, (2.0,) * 5])
            timings = lambda *args, **kwargs: PairedTiming(next(eager), (2.0,) * 5, threads=1, iterations=1)
            monkeypatch.setattr(pytest_fx.checks.timing_check, "time_pairs", timings)
            assert fx_timing(fx_traced, label="capture").speedup == 1.0
            assert next(eager, None) is None
        """
    )
    pytester.runpytest(*OPTIONS, "--fx-fail-slower", "5%", path).assert_outcomes(passed=1)


def test_a_marker_can_allow_one_test_more(pytester, baseline):
    baseline(1000.0, 990.0, 1010.0)
    marked = TIMING.replace("def test", '@pytest.mark.fx(fail_slower="100000000%")\ndef test')
    pytester.runpytest(*OPTIONS, "--fx-fail-slower", "5%", pytester.makepyfile(marked)).assert_outcomes(passed=1)


@pytest.mark.thorough
def test_the_ini_file_can_set_both(pytester, baseline):
    baseline(1000.0, 990.0, 1010.0)
    pytester.makeini("[pytest]\nfx_baseline = main.json\nfx_fail_slower = 5%")
    result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "5", pytester.makepyfile(TIMING))
    result.assert_outcomes(failed=1)


AGAINST_EAGER = """
import pytest_fx.checks.timing_check
from pytest_fx.timing.paired import PairedTiming

def test_timing(fx_traced, fx_timing, monkeypatch):
    timings = lambda *args, **kwargs: PairedTiming((1.0,) * 5, ({seconds},) * 5, threads=1, iterations=1)
    monkeypatch.setattr(pytest_fx.checks.timing_check, "time_pairs", timings)
    fx_timing(fx_traced, label="capture")
"""


def test_without_a_baseline_a_program_that_is_slower_than_eager_fails(pytester):
    path = pytester.makepyfile(AGAINST_EAGER.format(seconds=1.25))
    result = pytester.runpytest("--fx-model", "mlp", "--fx-fail-slower", "5%", path)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E +pytest_fx.errors.TimingRegression: capture on mlp takes 25.0% longer than eager",
            r"E +where  batch 1, float32, cpu, 1 thread\(s\)",
            r"E +value  speed-up 0.800 \(0.800 to 0.800\) on .*",
            r"E +why    the 95 % interval of the slowdown is \+25.0% to \+25.0%, above the limit.*",
        ]
    )
    assert "leave the pass out for this model, or allow more" in str(result.stdout)
    result.stdout.no_fnmatch_line("*change since the baseline*")


@pytest.mark.parametrize("seconds", [0.5, 1.04])
def test_without_a_baseline_a_pass_within_the_allowed_slowdown_passes(pytester, seconds):
    path = pytester.makepyfile(AGAINST_EAGER.format(seconds=seconds))
    pytester.runpytest("--fx-model", "mlp", "--fx-fail-slower", "5%", path).assert_outcomes(passed=1)
