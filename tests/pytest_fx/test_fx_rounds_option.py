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


CACHES = """
import pytest
import time
import torch
from torch import nn
from pytest_fx.errors import TimedOutputError

class Cache(nn.Module):
    def __init__(self, program, key):
        super().__init__()
        self.program, self.key, self.known = program, key, {}

    def forward(self, x):
        key = self.key(x)
        if key not in self.known:
            time.sleep(0.001)
            self.known[key] = self.program(x)
        return self.known[key]

@pytest.mark.parametrize("key", [id, torch.Tensor.data_ptr, lambda x: 0])
def test_cache(fx_traced, fx_timing, key):
    with pytest.raises(TimedOutputError, match="returns something else when the contents of its inputs change"):
        fx_timing(Cache(fx_traced, key), label="cache")

def test_cache_of_versions(fx_traced, fx_timing):
    try:
        timing = fx_timing(Cache(fx_traced, lambda x: x._version), label="cache")
    except TimedOutputError:  # the calls of one sample have equal versions
        return
    assert timing.verdict == "slower"

def test_cache_of_contents(fx_traced, fx_timing):
    assert fx_timing(Cache(fx_traced, lambda x: x.numpy().tobytes()), label="cache").verdict == "slower"

def test_clock(fx_traced, fx_timing, monkeypatch):
    class Stopping(nn.Module):
        def forward(self, x):
            monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
            time.sleep(0.001)
            return fx_traced(x)

    assert fx_timing(Stopping(), label="stopping").verdict == "slower"
"""


@pytest.mark.thorough
def test_a_program_that_remembers_its_outputs_is_not_timed_as_faster(pytester):
    path = pytester.makepyfile(CACHES)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "4", path)
    result.assert_outcomes(passed=6)
