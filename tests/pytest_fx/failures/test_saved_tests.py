"""Tests that failures leave behind: they fail alone, from any folder, and capture as the run did that wrote them."""

import re

import pytest
from models_of_users import BRANCHING

MINE = (
    BRANCHING
    + '''
def wrong(program):
    """Wrong behind the module that branches."""
    for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
        if node.args[0].target == "choice":
            node.target = torch.tanh
    program.recompile()

class Fusion:
    name = "own-fusion"
    __call__ = staticmethod(wrong)
'''
)


def saved(pytester, *options):
    """The test file that a run leaves behind."""
    run = ("--fx-no-timing", "-k", "test_pass_keeps", "-p", "no:cacheprovider")
    result = pytester.runpytest(*options, *run)
    assert result.parseoutcomes()["failed"] == 1
    path = re.search(r"a test of \d+ nodes that shows it alone:\s+(\S+)\n", str(result.stdout))
    assert path is not None, str(result.stdout)
    return pytester.path / path[1]


def require_failure(pytester, monkeypatch, path, name="wrong"):
    """Run the test from the root of all folders, where nothing of the user's is beside it."""
    with monkeypatch.context() as patch:
        patch.chdir("/")
        result = pytester.runpytest("-p", "no:cacheprovider", path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(f"*law 'contract': {name} changes what part_of_model computes*")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option",
    [
        ("--fx-leaf", "choice"),
        ("--fx-leaf", "mine.Branching"),
        ("--fx-tracer", "mine:Ours"),
        ("--fx-tracer", "mine:Theirs"),
    ],
)
def test_a_saved_test_captures_as_the_run_did(mine, option, monkeypatch):
    path = saved(mine, "--fx-model", "mine:network", "--fx-pass", "mine:wrong", *option)
    require_failure(mine, monkeypatch, path)


HOOK = """
def pytest_fx_register(config):
    import mine
    return [mine.Fusion]
"""
THEIRS = """
import mine

def wrong(program):
    return mine.wrong(program)
"""


def test_a_saved_test_of_a_pass_that_a_conftest_registers_needs_no_conftest(mine, monkeypatch):
    mine.makeconftest(HOOK)
    path = saved(mine, "--fx-model", "mine:network", "--fx-pass", "own-fusion", "--fx-leaf", "choice")
    require_failure(mine, monkeypatch, path, "own-fusion")


@pytest.mark.thorough
def test_a_saved_test_finds_modules_of_the_model_that_are_not_beside_the_pass(mine, monkeypatch):
    passes = mine.mkdir("passes")
    (passes / "theirs.py").write_text(THEIRS)
    mine.syspathinsert(passes)
    path = saved(mine, "--fx-model", "mine:network", "--fx-pass", "theirs:wrong", "--fx-leaf", "Branching")
    require_failure(mine, monkeypatch, path)


@pytest.mark.thorough
def test_a_saved_test_uses_its_model_even_if_the_ini_file_names_others(mine, monkeypatch):
    mine.makeini("[pytest]\nfx_batch = 2\nfx_leaf =\n    choice\n    last\nfx_model = mine:network")
    path = saved(mine, "--fx-pass", "mine:wrong")
    require_failure(mine, monkeypatch, path)


@pytest.mark.thorough
def test_a_saved_test_can_be_moved_away_from_the_modules_that_it_needs(mine, monkeypatch, tmp_path_factory):
    path = saved(mine, "--fx-model", "mine:network", "--fx-pass", "mine:wrong", "--fx-leaf", "choice")
    moved = tmp_path_factory.mktemp("moved") / "folder"
    path.parent.rename(moved)
    require_failure(mine, monkeypatch, moved / path.name)
