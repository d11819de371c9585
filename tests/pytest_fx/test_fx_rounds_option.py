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


def test_a_timing_that_takes_long_is_announced_before_it_starts_and_is_not_cut_short(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.timing.paired.LONG_TIMING", 0.0)
    path = pytester.makepyfile("def test_timing(fx_traced, fx_timing): fx_timing(fx_traced, label='capture')")
    result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "7", "--benchmark-json=out.json", path)
    result.stdout.fnmatch_lines("fx: 7 rounds of mlp with capture take about 0 min; --fx-rounds takes fewer")
    assert '"rounds": 7' in (pytester.path / "out.json").read_text()


REMEMBERS = """
import pytest
from torch import nn
from pytest_fx.errors import TimedOutputError

class Remembers(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program, self.known = program, None

    def forward(self, x):
        self.known = self.program(x) if self.known is None else self.known
        return self.known

def test_it(fx_traced, fx_timing):
    with pytest.raises(TimedOutputError, match="returns something else when the contents of its inputs change"):
        fx_timing(Remembers(fx_traced), label="remembers")
"""


def test_a_program_that_remembers_its_outputs_is_not_timed(pytester):
    path = pytester.makepyfile(REMEMBERS)
    pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "4", path).assert_outcomes(passed=1)
