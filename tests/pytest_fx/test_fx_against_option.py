"""--fx-against REF: each pass beside the same pass at a git revision, or in another environment."""

import os
import subprocess
import sys
import venv

import pytest

from pytest_fx.errors import RevisionError
from pytest_fx.report.rows import SummaryRow, compared_with_base
from pytest_fx.revisions.base_code import Environment, GitRevision, LoadedCode, find_base

PASSES = '''
"""A model, and passes: each is what it does at the base and what it does at the head."""

import os

import torch
from torch import nn

AT_BASE = True


def net():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
    return nn.Sequential(*layers).eval(), (torch.randn(8, 16),)


def _relu(program, function):
    for node in list(program.graph.nodes):
        if node.op == "call_module" and isinstance(program.get_submodule(node.target), nn.ReLU):
            with program.graph.inserting_after(node):
                new = program.graph.call_function(function, node.args)
            node.replace_all_uses_with(new)
            program.graph.erase_node(node)
    program.recompile()
    return program


def _slow_relu(x):
    for _ in range(200):
        y = torch.relu(x)
    return y


def unchanged(program):
    return _relu(program, torch.relu)


def broken(program):
    return _relu(program, torch.relu if AT_BASE else torch.sigmoid)


def fixed(program):
    return _relu(program, torch.sigmoid if AT_BASE else torch.relu)


def always_wrong(program):
    return _relu(program, torch.sigmoid)


def ends_its_process(program):
    return os._exit(3) if AT_BASE else program


def slower(program):
    return _relu(program, torch.relu if AT_BASE else _slow_relu)
'''
OF_HEAD = PASSES.replace("AT_BASE = True", "AT_BASE = False") + "\n\ndef new(program):\n    return program\n"
MODEL = ("--fx-model", "mine:net", "--fx-rounds", "3")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def make_repository(folder):
    """Commit the module of the base in ``folder``, and leave that of the head uncommitted."""
    git(folder, "init", "-q")
    (folder / "mine.py").write_text(PASSES)
    git(folder, "add", "mine.py")
    git(folder, "commit", "-q", "-m", "base")
    git(folder, "branch", "-f", "base")
    (folder / "mine.py").write_text(OF_HEAD)


@pytest.fixture
def repository(pytester):
    make_repository(pytester.path)
    return pytester.path


@pytest.fixture(scope="module")
def run_of_all(tmp_path_factory):
    """The folder, and the output of one run of all passes of the module."""
    folder = tmp_path_factory.mktemp("repository")
    make_repository(folder)
    passes = [f"--fx-pass=mine:{name}" for name in ("broken", "fixed", "always_wrong", "slower")]
    against = ("--fx-against", "base", "--fx-fail-slower", "20%")
    # Of so many pairs the interval leaves out those that other work on the machine made long.
    command = [sys.executable, "-m", "pytest", "--fx-model", "mine:net", "--fx-rounds", "21", *passes, *against]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment |= {"COLUMNS": "200", "PYTHONPATH": path, "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
    done = subprocess.run(
        [*command, "-rA", "-v"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return folder, environment["TMPDIR"], done


def lines_of(run, *words):
    """Return the lines of the output that have all of the words."""
    return [line for line in run[2].stdout.splitlines() if all(word in line for word in words)]


def test_a_pass_that_is_right_at_both_passes_and_has_a_row_for_each(run_of_all):
    assert lines_of(run_of_all, "test_pass_is_right_where_its_base_is[mine:net-mine:slower] PASSED")
    assert lines_of(run_of_all, "  slower ", "right", " ms ", "slower", "% to ")
    assert lines_of(run_of_all, "  slower at base ", "right", " ms ")


def test_a_pass_that_is_wrong_now_and_was_right_fails_and_says_that_it_was_right(run_of_all):
    assert run_of_all[2].returncode == pytest.ExitCode.TESTS_FAILED
    assert lines_of(run_of_all, "test_pass_is_right_where_its_base_is[mine:net-mine:broken] FAILED")
    commit = git(run_of_all[0], "rev-parse", "base")[:9]
    assert lines_of(run_of_all, f"base   at base ({commit}) it is right")
    assert lines_of(run_of_all, "  broken at base ", "right")
    assert lines_of(run_of_all, "!", "  broken ", "wrong: contract")


def test_a_pass_that_is_wrong_at_both_is_an_expected_failure(run_of_all):
    assert lines_of(
        run_of_all, "test_pass_is_right_where_its_base_is[mine:net-mine:always_wrong] XFAIL", "at base, too"
    )


def test_a_pass_that_is_right_now_and_was_wrong_passes_and_is_not_timed(run_of_all):
    assert lines_of(run_of_all, "test_pass_is_right_where_its_base_is[mine:net-mine:fixed] PASSED")
    assert lines_of(run_of_all, "!", "  fixed at base ", "wrong: contract")
    assert lines_of(run_of_all, "fixed is not right on mine:net at base, and is not timed")


def test_a_pass_whose_program_became_slower_fails_by_the_option_for_it(run_of_all):
    assert lines_of(run_of_all, "test_pass_timing_beside_its_base[mine:net-mine:slower] FAILED")
    assert lines_of(run_of_all, "TimingRegression: slower on mine:net takes ", "% longer than at base")
    assert lines_of(run_of_all, "above the limit of 20.0%")


def test_nothing_is_left_in_the_repository_and_among_temporary_files(run_of_all):
    folder, temporary, _ = run_of_all
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert not [name for name in os.listdir(temporary) if name.startswith("pytest-fx-against")]
    assert (folder / "mine.py").read_text() == OF_HEAD


def test_a_run_that_compared_something_does_not_say_that_it_did_not(run_of_all):
    assert not lines_of(run_of_all, "nothing was compared")


@pytest.mark.parametrize(
    "here, there, is_compared",
    [
        ({"changed": True, "kept": True}, {"changed": True, "kept": True}, True),
        ({"changed": True, "kept": True}, {"changed": False}, True),
        ({"changed": True, "outcome": "wrong: contract"}, {"changed": True, "kept": True}, True),
        ({"slowdown": 0.1}, {"seconds": 1.0}, True),
        ({"changed": False}, {"changed": False}, False),
        ({"changed": True, "kept": True}, {"outcome": "not judged: it does not exist there"}, False),
        ({"outcome": "refuses"}, {"changed": True, "kept": True}, False),
        ({"changed": True, "kept": True}, None, False),
    ],
)
def test_a_pass_is_compared_where_it_ran_at_both_and_changed_something(here, there, is_compared):
    rows = [SummaryRow("net", "fuse", **here)]
    rows += [] if there is None else [SummaryRow("net", "fuse at main", **there)]
    assert bool(compared_with_base(rows, "main")) == is_compared


def test_a_run_that_compared_nothing_fails_in_a_sentence(pytester, repository):
    result = pytester.runpytest(*MODEL, "--fx-pass", "mine:unchanged", "--fx-against", "base", "-k", "right and timing")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result = pytester.runpytest(
        "--fx-model",
        "mine:net",
        "--fx-pass",
        "mine:unchanged",
        "--fx-against",
        "base",
        "-k",
        "timing",
        "--fx-no-timing",
    )
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["fx: nothing was compared with base: no pass ran here and there*"])


@pytest.mark.thorough
def test_a_pass_that_ends_the_process_of_the_base_fails_its_test_and_the_others_go_on(pytester, repository):
    passes = ("--fx-pass", "mine:ends_its_process", "--fx-pass", "mine:unchanged")
    result = pytester.runpytest(*MODEL, *passes, "--fx-against", "base", "-k", "right")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["E*RevisionError: the process of base (*) ended in this test, with status 3"])


@pytest.mark.thorough
def test_a_pass_that_the_revision_lacks_fails_one_test_with_the_reason(pytester, repository):
    result = pytester.runpytest(*MODEL, "--fx-pass", "mine:new", "--fx-against", "base")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "E*RevisionError: base (*) cannot be run with these options",
            "      value  there is no pass named 'mine:new'",
            "*mine has no attribute 'new'",
            "*try    name a revision that has them (--fx-against REF), or an environment with *",
        ]
    )


def test_an_unknown_revision_is_refused_before_anything_runs(pytester, repository):
    result = pytester.runpytest(*MODEL, "--fx-pass", "mine:unchanged", "--fx-against", "nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: --fx-against: nowhere is neither a git revision nor the path of a Python interpreter",
            "  why    *",
            "  try    git log --oneline lists revisions; *",
        ]
    )


def test_a_folder_without_a_repository_is_refused(pytester):
    pytester.makepyfile(mine=PASSES)
    result = pytester.runpytest(*MODEL, "--fx-pass", "mine:unchanged", "--fx-against", "main")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --fx-against: main is neither *", "  why    *not a git repository*"])


def test_an_environment_without_torch_is_refused_in_a_sentence(pytester, repository):
    venv.create(pytester.path / "empty")
    result = pytester.runpytest(*MODEL, "--fx-pass", "mine:unchanged", "--fx-against", "empty", "-k", "right")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*RevisionError: empty cannot be run *", "*value * has no torch"])


def test_the_checkout_has_the_folders_of_the_import_path_and_is_removed_when_interrupted(repository, monkeypatch):
    (repository / "source").mkdir()
    (repository / "source" / "package.py").write_text("")
    git(repository, "add", "source")
    git(repository, "commit", "-q", "-m", "package")
    monkeypatch.syspath_prepend(repository / "source")
    base = find_base("HEAD", repository / "source")
    assert isinstance(base, GitRevision)

    places = []

    def interrupted():
        with base.place(repository, ["package"]) as place:
            assert (place.folder / "mine.py").read_text() == PASSES
            assert str(place.top / "source") in place.path
            assert str(repository / "source") in place.replaced
            places.append(place)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not places[0].top.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_code_of_the_working_tree_in_the_process_of_the_base_is_refused(repository):
    base = find_base("base", repository)
    with base.place(repository, []) as place:
        there = str(place.top / "mine.py")
        base.require_other_code(place, LoadedCode([there], [there, os.__file__]), [])
        with pytest.raises(RevisionError, match="would run code of the working tree"):
            base.require_other_code(place, LoadedCode([there], [str(repository / "mine.py")]), [])
        with pytest.raises(RevisionError, match=r"(?s)the pass is not part of base .* outside of the repository"):
            base.require_other_code(place, LoadedCode([os.__file__], [os.__file__]), [])


def test_an_environment_with_the_same_file_of_the_pass_is_refused(tmp_path):
    base = find_base(sys.executable, tmp_path)
    assert isinstance(base, Environment)
    with base.place(tmp_path, []) as place:
        with pytest.raises(RevisionError, match="has the pass from the same file"):
            base.require_other_code(place, LoadedCode([__file__], []), [__file__])
        base.require_other_code(place, LoadedCode([os.__file__], []), [__file__])


def test_a_baseline_beside_it_is_refused(pytester, repository, baseline):
    baseline(1.0, 0.9, 1.1)
    against = ("--fx-pass", "mine:unchanged", "--fx-against", "base", "--fx-baseline", "main.json")
    result = pytester.runpytest(*MODEL, *against)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --fx-baseline has no effect", "  why    times are compared with those of *"])
