"""check_pass(isolate=True): an end of the process is a broken law, on a shrunk program."""

import ctypes
import itertools
import os
import re
import subprocess
import sys
import time

import hypothesis
import pytest
import torch

from fx.errors import FxError
from pytest_fx import LawViolation, NothingJudged, check_pass, check_program
from pytest_fx.search import isolated_search

pytestmark = pytest.mark.usefixtures("little_explored")


def where_a_relu_is(act):
    """A pass, which cannot be pickled, that acts on programs with a relu."""

    def local(program):
        if any(node.target in (torch.relu, "relu", torch.nn.functional.relu) for node in program.graph.nodes):
            act()

    return local


def crash():
    ctypes.string_at(0)


UNSHRUNK = hypothesis.settings(phases=[hypothesis.Phase.generate])


def found(act, folder, **options):
    with pytest.raises(LawViolation) as raised:
        check_pass(where_a_relu_is(act), isolate=True, seed=0, max_examples=60, folder=folder, **options)
    return raised.value


def test_a_program_that_ends_the_process_is_a_counterexample_and_shrunk(tmp_path):
    tried = []
    violation = found(crash, tmp_path, on_program=lambda number, count: tried.append((number, count)))
    *searched, smaller = tried
    assert searched == [(number, 60) for number in range(1, len(tried))]
    assert smaller == (len(searched), None)
    assert (violation.law, violation.kind) == ("process untouched", "SIGSEGV")
    assert "law 'process untouched': local ended its process by the signal SIGSEGV" in str(violation)
    assert "the smallest program found, in evaluation mode:\n" in str(violation)
    program = re.split(r"def forward\(self, \w+\):\n", str(violation))[1].partition("\n\n")[0]
    assert len(program.splitlines()) == 2
    assert "relu" in program


@pytest.mark.thorough
def test_a_pass_that_waits_in_native_code_breaks_the_law_that_it_terminates(tmp_path):
    violation = found(lambda: time.sleep(1e6), tmp_path, settings=UNSHRUNK, timeout=2.0)
    assert (violation.law, violation.kind) == ("terminates", "time")
    assert "local ran longer than 2 s" in str(violation)
    assert "in <lambda>:  violation = found(lambda: time.sleep" in str(violation)


@pytest.mark.thorough
def test_a_pass_that_takes_too_much_memory_breaks_a_law(tmp_path):
    violation = found(lambda: list(itertools.repeat(1)), tmp_path, settings=UNSHRUNK, memory=200)
    assert "law 'process untouched': local needed more than 200 MiB" in str(violation)


def test_an_exception_that_would_end_pytest_is_a_broken_law(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    assert "local raised KeyboardInterrupt" in str(found(interrupt, tmp_path, settings=UNSHRUNK))


def test_a_right_pass_is_reported_as_without_a_child(monkeypatch):
    reports = [check_pass("merge-parallel-layers", isolate=isolate, seed=1, max_examples=2, min_changed=0)
               for isolate in (False, True)]  # fmt: skip
    assert reports[0] == reports[1]


@pytest.mark.thorough
def test_a_law_that_is_broken_in_the_child_is_reported_as_without_one(tmp_path):
    def negated(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.neg
        program.recompile()

    printed = []
    for isolate in (False, True):
        with pytest.raises(LawViolation) as raised:
            check_pass(negated, isolate=isolate, seed=0, max_examples=60, folder=tmp_path, settings=UNSHRUNK)
        printed.append((raised.value.law, raised.value.kind, str(raised.value)))
    assert printed[0] == printed[1]


def test_a_pass_that_changes_nothing_is_not_judged_in_a_child_either():
    with pytest.raises(NothingJudged):
        check_pass(lambda program: None, isolate=True, seed=0, max_examples=2)


USERS_PASS = """
import os

def exits(program):
    if any("relu" in str(node.target) for node in program.graph.nodes):
        os._exit(7)
"""


@pytest.mark.thorough
def test_the_test_that_is_written_fails_and_does_not_end_pytest(pytester, monkeypatch):
    pytester.makepyfile(mine_that_exits=USERS_PASS)
    monkeypatch.syspath_prepend(pytester.path)
    with pytest.raises(LawViolation) as raised:
        check_pass("mine_that_exits:exits", isolate=True, seed=0, max_examples=60, folder=pytester.path / "found")
    (path,) = (pytester.path / "found").iterdir()
    assert f"a test of it alone: {path}" in str(raised.value)
    result = pytester.runpytest(path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("E*law 'process untouched': exits ended its process with status 7*")


def test_a_program_that_ends_the_process_without_the_pass_is_not_blamed_on_the_pass(monkeypatch):
    real = isolated_search.Crash._ending
    tried = []

    def ending(crash, text, mode, pass_):
        tried.append(text)
        return crash.ending if pass_ is not None else real(crash, text, mode, pass_)

    monkeypatch.setattr(isolated_search.Crash, "_ending", ending)
    with pytest.raises(FxError, match="a random program, without the pass, ended its process with status 0"):
        check_pass(where_a_relu_is(lambda: os._exit(0)), isolate=True, seed=0, max_examples=30)
    assert len(set(tried)) == isolated_search._MOST_SKIPPED + 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"timeout": 1.0}, "timeout= is a limit of a child process"),
        ({"memory": 100}, "memory= is a limit of a child process"),
        ({"isolate": True, "timeout": 0}, "timeout=0 is not a limit"),
        ({"isolate": True, "memory": -1}, "memory=-1 is not a limit"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options, message):
    for check in (check_pass, lambda pass_, **given: check_program(pass_, torch.nn.ReLU, lambda: ((), {}), **given)):
        with pytest.raises(FxError, match=message):
            check("fuse-conv-bn", **options)


@pytest.mark.thorough
def test_threads_of_the_parent_are_not_waited_for():
    code = (
        "import torch; torch.set_num_threads(2); (torch.ones(2**22).exp_() + 1).sum()\n"
        "torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n"
        "from pytest_fx import check_pass\n"
        "print(check_pass('merge-parallel-layers', isolate=True, seed=0, max_examples=3, min_changed=0, timeout=30))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert "of 3 programs and kept" in done.stdout
