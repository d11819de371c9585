"""--fx-rounds: pairs of calls in a timing; --fx-budget: seconds for which pairs are added until they decide."""

import pytest

COUNT_ROUNDS = """
def test_rounds(fx_traced, fx_timing):
    timing = fx_timing(fx_traced, label="capture")
    assert len(timing.eager) == len(timing.transformed) == {rounds}
"""


@pytest.mark.parametrize("options, rounds", [(("--fx-budget", "0"), 30), (("--fx-rounds", "4"), 4)])
def test_a_timing_takes_that_many_pairs(pytester, options, rounds):
    path = pytester.makepyfile(COUNT_ROUNDS.format(rounds=rounds))
    pytester.runpytest("--fx-model", "mlp", *options, path).assert_outcomes(passed=1)


BUDGETS = """
import pytest
from pytest_fx.options import options_of

def test_of_the_run(request, fx_device):
    assert (options_of(request.node).rounds, options_of(request.node).budget) == {run}

@pytest.mark.fx(rounds=7)
def test_rounds(request):
    assert (options_of(request.node).rounds, options_of(request.node).budget) == (7, 0.0)

@pytest.mark.fx(rounds=7, budget=3)
def test_both(request):
    assert (options_of(request.node).rounds, options_of(request.node).budget) == (7, 3.0)

@pytest.mark.fx(budget="2.5")
def test_budget(request):
    assert (options_of(request.node).rounds, options_of(request.node).budget) == ({run}[0], 2.5)
"""


@pytest.mark.parametrize("ini, run", [("", (30, 20.0)), ("fx_rounds = 4", (4, 0.0)), ("fx_budget = 5", (30, 5.0))])
def test_pairs_are_added_where_their_number_was_not_requested(pytester, ini, run):
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.runpytest(pytester.makepyfile(BUDGETS.format(run=run))).assert_outcomes(passed=4)


def test_a_row_says_that_a_timing_has_not_decided_within_its_budget(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        import pytest_fx.checks.timing_check
        from pytest_fx.timing.paired import PairedTiming

        @pytest.mark.fx(model="mlp")
        def test_timing(fx_traced, fx_timing, monkeypatch):
            def time_pairs(*args, budget, decides, **kwargs):
                times = tuple(0.9 + 0.2 * number / 59 for number in range(60))
                timing = PairedTiming(times, (1.0,) * 60, 1, 1, looks=6, is_open=True)
                assert budget == 20.0 and not decides(timing)
                assert decides(PairedTiming((1.0,) * 60, (1.0,) * 60, 1, 1, looks=6))
                return timing
            monkeypatch.setattr(pytest_fx.checks.timing_check, "time_pairs", time_pairs)
            fx_timing(fx_traced, label="capture")
        """
    )
    result = pytester.runpytest(path, "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("mlp *capture *1.000 (0.9* to 1.0*), no difference shown; undecided after 60 pairs*")
    result = pytester.runpytest(path)
    result.stdout.fnmatch_lines("mlp *capture *1.000 (0.9* to 1.0*), no difference, undecided*")


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
