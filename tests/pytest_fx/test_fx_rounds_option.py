"""--fx-rounds: pairs of calls in a timing."""

import pytest

COUNT_ROUNDS = """
def test_rounds(fx_traced, fx_timing):
    timing = fx_timing(fx_traced, label="capture")
    assert len(timing.eager) == len(timing.transformed) == {rounds}
"""


@pytest.mark.parametrize("options, rounds", [((), 30), (("--fx-rounds", "4"), 4)])
def test_a_timing_takes_that_many_pairs(pytester, options, rounds):
    path = pytester.makepyfile(COUNT_ROUNDS.format(rounds=rounds))
    pytester.runpytest("--fx-model", "mlp", *options, path).assert_outcomes(passed=1)
