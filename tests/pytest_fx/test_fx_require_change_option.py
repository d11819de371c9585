"""--fx-require-change, --fx-min-changes: a pass that matches no more fails."""

import pytest

MINE = """
import fx, torch
from torch import nn
from fx.errors import PassError
from fx.passes import Edit, RewritingPass

class Net(nn.Module):
    def forward(self, x):
        return torch.relu(torch.exp(torch.relu(torch.exp(x))))

class Other(nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x))

def net():
    return Net(), torch.ones(2, 4)

def other():
    return Other(), torch.ones(2, 4)

def fuse(program):
    fx.replace_pattern(program, lambda x: torch.relu(torch.exp(x)), lambda x: torch.exp(x))

class Drop(RewritingPass):
    def rewrites(self, program):
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            if node.args[0].target is torch.exp:
                yield Edit(f"{node} goes", node.source)
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)

def refuse(program):
    raise PassError("no program of that kind")
"""
QUICK = ("--fx-no-timing", "-k", "keeps_its_contract")


@pytest.mark.parametrize("pass_", ["mine:fuse", "mine:Drop"])
def test_a_pass_that_changes_nothing_fails_and_one_that_does_passes(mine, pass_):
    options = ("--fx-model", "mine:net", "--fx-model", "mine:other", "--fx-pass", pass_, *QUICK)
    result = mine.runpytest(*options)
    assert result.parseoutcomes().get("failed") is None
    result = mine.runpytest(*options, "--fx-require-change")
    assert result.parseoutcomes()["failed"] == 1
    name = pass_.partition(":")[2].lower()
    result.stdout.fnmatch_lines(
        [
            f"E *TooFewChanges: {name} makes 0 change(s) in mine:other, of at least 1",
            "*value  it changes nothing in 4 nodes",
            "*try    search the captured program*",
        ]
    )
    result.stdout.fnmatch_lines_random([f"*mine:net *{name} *right*", f"*mine:other *{name} *wrong*"])


def test_the_message_has_where_the_pattern_nearly_matches(mine):
    result = mine.runpytest(
        "--fx-model", "mine:other", "--fx-pass", "mine:fuse", "--fx-require-change", *QUICK
    )  # fmt: skip
    result.stdout.fnmatch_lines("*why    nearly at `%relu` *: the pattern's `%relu` is fed by exp, here by sin")


@pytest.mark.parametrize("pass_", ["mine:fuse", "mine:Drop"])
def test_changes_are_counted(mine, pass_):
    options = ("--fx-model", "mine:net", "--fx-pass", pass_, *QUICK)
    mine.runpytest(*options, "--fx-min-changes", "2").assert_outcomes(passed=2, deselected=13)
    result = mine.runpytest(*options, "--fx-min-changes", "3")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines("E *TooFewChanges: * makes 2 change(s) in mine:net, of at least 3")


def test_a_refusal_is_no_change(mine):
    options = ("--fx-model", "mine:net", "--fx-pass", "mine:refuse", *QUICK)
    assert mine.runpytest(*options).ret == 0
    result = mine.runpytest(*options, "--fx-require-change")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines("*why    no program of that kind")


def test_a_marker_asks_for_changes_in_fixtures(mine):
    path = mine.makepyfile(
        """
        import pytest, mine

        @pytest.mark.fx(model=["mine:net", "mine:other"], require_change=True)
        def test_equal(fx_equal):
            fx_equal(mine.fuse)

        @pytest.mark.fx(model=["mine:net", "mine:other"], pass_=[mine.fuse], min_changes=2)
        def test_transformed(fx_transformed):
            assert "relu" not in fx_transformed.code

        @pytest.mark.fx(model=["mine:net", "mine:other"], min_changes=1, rounds=2)
        def test_timing(fx_timing):
            fx_timing(mine.fuse)

        @pytest.mark.fx(model="mine:other", require_change=False)
        def test_that_allows_none(fx_equal):
            fx_equal(mine.fuse)
        """
    )
    result = mine.runpytest(path)
    result.assert_outcomes(passed=4, failed=2, errors=1)
    assert result.stdout.str().count("fuse makes 0 change(s) in mine:other, of at least") >= 3
    result = mine.runpytest(path, "--fx-require-change", "-k", "allows_none")
    result.assert_outcomes(passed=1, deselected=6)


def test_without_named_passes_the_option_is_refused_and_the_setting_asks_for_nothing(mine):
    result = mine.runpytest("--fx-model", "mine:other", *QUICK, "--fx-require-change")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*--fx-require-change is about passes that are named*", "*  try    --fx-pass NAME"])
    mine.makeini("[pytest]\nfx_require_change = true")
    assert mine.runpytest("--fx-model", "mine:other", *QUICK).ret == 0
    assert mine.runpytest("--fx-model", "mine:other", "--fx-pass", "mine:fuse", *QUICK).ret == 1
