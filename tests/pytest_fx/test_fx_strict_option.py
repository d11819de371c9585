"""--fx-strict: results that cannot be decided fail, and so do passes that change less than before."""

import pytest
from building import last_run

OPTIONS = ("--fx-model", "mine:model", "--fx-pass", "mine:fuse", "--fx-no-timing", "-k", "test_pass_keeps_its_contract")
MINE = """
import fx, torch
from torch import nn
from fx.passes import Edit, RewritingPass

class Net(nn.Module):
    def forward(self, x):
        x = torch.relu(torch.exp(x))
        return torch.relu(torch.{second}(x))

def model():
    return Net(), torch.ones(2, 4)

def fuse(program):
    fx.replace_pattern(program, lambda x: torch.relu(torch.exp(x)), lambda x: torch.exp(x))

class Drop(RewritingPass):
    def rewrites(self, program):
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            if node.args[0].target is torch.exp:
                yield Edit(f"{{node}} goes", node.source)
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)
"""


@pytest.fixture
def less(pytester):
    """A folder with the record of a run whose passes changed more than now."""

    def run(*options):
        options = options or OPTIONS
        pytester.makepyfile(mine=MINE.format(second="exp"))
        assert pytester.runpytest(*options).ret == 0
        (pytester.path / ".pytest_fx" / "last_run.json").rename(pytester.path / "main.json")
        pytester.makepyfile(mine=MINE.format(second="sin"))
        return pytester

    return run


def test_changes_of_a_pass_are_recorded_without_timing(pytester):
    pytester.makepyfile(mine=MINE.format(second="exp"))
    pytester.runpytest(*OPTIONS, "--fx-pass", "mine:Drop")
    records = last_run(pytester.path)["records"]
    rows_by_program = {
        record["row"]["program"]: record["row"] for record in records if record["row"]["changed"] is not None
    }
    assert {name: (row["edits"], row["nodes_before"], row["nodes_after"]) for name, row in rows_by_program.items()} == {
        "fuse": (None, 6, 4),
        "drop": (2, 6, 4),
    }


def test_a_pass_that_changes_less_than_before_is_named_with_the_near_miss_and_passes(less):
    result = less().runpytest(*OPTIONS, "--fx-baseline", "main.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "fuse changes less in mine:model than in the baseline",
            "  value  now 6 -> 5 nodes, in the baseline 6 -> 4 nodes",
            "  why    nearly at `%relu_1` (*mine.py:8): the pattern's `%relu` is fed by exp, here by sin",
        ]
    )


def test_a_pass_that_changes_less_than_before_fails_when_strict(less):
    result = less().runpytest(*OPTIONS, "--fx-baseline", "main.json", "--fx-strict")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["E *LostRewrite: fuse changes less in mine:model than in the baseline", "* why    nearly at `%relu_1`*"]
    )


def test_edits_are_counted_where_a_pass_names_them(less):
    options = ("--fx-model", "mine:model", "--fx-pass", "mine:Drop", "--fx-no-timing", "-k", "keeps_its_contract")
    result = less(*options).runpytest(*options, "--fx-baseline", "main.json")
    result.stdout.fnmatch_lines(
        [
            "drop changes less in mine:model than in the baseline",
            "  value  now 1 edit(s), 6 -> 5 nodes, in the baseline 2 edit(s), 6 -> 4 nodes",
        ]
    )


@pytest.mark.thorough
def test_a_registered_pass_that_matches_no_more_is_named_although_its_tests_are_skipped(pytester):
    source = "from torch import nn, ones\ndef model(): return nn.Sequential(nn.Conv2d(3, 4, 3), {}), ones(1, 3, 8, 8)"
    options = ("--fx-model", "mine:model", "--fx-no-timing", "-k", "test_pass_keeps_its_contract")
    pytester.makepyfile(mine=source.format("nn.BatchNorm2d(4)"))
    assert pytester.runpytest(*options).ret == 0
    (pytester.path / ".pytest_fx" / "last_run.json").rename(pytester.path / "main.json")
    pytester.makepyfile(mine=source.format("nn.ReLU(), nn.BatchNorm2d(4)"))
    result = pytester.runpytest(*options, "--fx-baseline", "main.json", "-n", "1", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["mine:model *fuse-conv-bn *changes nothing*"])
    result.stdout.fnmatch_lines(
        [
            "fuse-conv-bn changes less in mine:model than in the baseline",
            "  value  now nothing in * nodes, in the *1 edit*",
        ]
    )
    assert pytester.runpytest(*options, "--fx-baseline", "main.json", "--fx-strict").ret == 1


NOISY = """
import pytest_fx.checks.timing_check
from pytest_fx.timing.paired import PairedTiming

def test_timing(fx_traced, fx_timing, monkeypatch):
    eager = iter({runs})
    def time_pairs(*args, **kwargs):
        times = next(eager)
        return PairedTiming(times, (1.0,) * len(times), threads=1, iterations=1)
    monkeypatch.setattr(pytest_fx.checks.timing_check, "time_pairs", time_pairs)
    try:
        fx_timing(fx_traced, label="capture")
    finally:
        assert next(eager, None) is None
"""
SCATTERED, STEADY = (0.5, 2.0, 1.0, 0.7, 1.4), (1.0,) * 5


@pytest.fixture
def steady_baseline(pytester, baseline):
    baseline()
    return pytester


TIMED = ("--fx-model", "mlp", "--fx-batch", "1", "--fx-baseline", "main.json", "--fx-fail-slower", "5%")


def test_times_too_noisy_to_tell_pass_and_the_table_says_so(steady_baseline):
    path = steady_baseline.makepyfile(NOISY.format(runs=[SCATTERED]))
    result = steady_baseline.runpytest(*TIMED, "-v", path)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("mlp *capture * too noisy to tell: 0% outliers, *% *too noisy to tell (-* to +*)")
    (record,) = last_run(steady_baseline.path)["records"]
    assert record["timing"]["eager"] == list(SCATTERED)


def test_times_too_noisy_to_tell_three_times_fail_when_strict(steady_baseline):
    path = steady_baseline.makepyfile(NOISY.format(runs=[SCATTERED] * 3))
    result = steady_baseline.runpytest(*TIMED, "--fx-strict", path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *NoisyTiming: it is too noisy to tell whether capture on mlp takes more than 5.0% longer",
            "E *value  speed-up now 1.000 (*",
            "E *why    the 95 % interval of the slowdown is -*% to +*%, which holds no change and the limit",
            "E *try    measure more pairs with --fx-rounds*",
        ]
    )


@pytest.mark.parametrize("options", [("--fx-batch", "4"), ("--fx-batch", "1", "--fx-dtype", "float64")])
def test_a_timing_that_the_baseline_has_none_like_fails_when_strict(steady_baseline, options):
    path = steady_baseline.makepyfile(NOISY.format(runs=[STEADY]))
    timed = ("--fx-model", "mlp", *options, "--fx-baseline", "main.json", "--fx-fail-slower", "5%", path)
    steady_baseline.runpytest(*timed).assert_outcomes(passed=1)
    result = steady_baseline.runpytest(*timed, "--fx-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *MissingBaseline: main.json has no timing to compare capture on mlp with", "E *try    make a new baseline*"]
    )


def test_times_that_decide_once_they_are_taken_again_pass_when_strict(steady_baseline):
    path = steady_baseline.makepyfile(NOISY.format(runs=[SCATTERED, STEADY]))
    steady_baseline.runpytest(*TIMED, "--fx-strict", path).assert_outcomes(passed=1)


def test_a_marker_and_the_ini_file_can_be_strict(steady_baseline):
    marked = NOISY.replace("def test_t", "import pytest\n@pytest.mark.fx(strict=True)\ndef test_t")
    path = steady_baseline.makepyfile(marked.format(runs=[SCATTERED] * 3))
    steady_baseline.runpytest(*TIMED, path).assert_outcomes(failed=1)
    steady_baseline.makeini("[pytest]\nfx_strict = true")
    path = steady_baseline.makepyfile(NOISY.format(runs=[SCATTERED] * 3))
    steady_baseline.runpytest(*TIMED, path).assert_outcomes(failed=1)
