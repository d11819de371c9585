"""--fx-timeout: how long a test of a pass or a model may run, in the process of pytest."""

import pytest

HANGS = """
import time
import pytest

def loops(program):
    while True:
        pass

@pytest.mark.fx(timeout=0.5)
def test_loops(fx_equal): fx_equal(loops)

def test_next(fx_traced, fx_equal): fx_equal(fx_traced, label="next")

@pytest.mark.fx(timeout=0.5)
def test_without_the_plugin(): time.sleep(0.7)
"""


def test_a_pass_that_hangs_in_python_is_interrupted_and_the_others_run(pytester):
    path = pytester.makepyfile(HANGS)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-timeout", "60", path)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "E*TimeLimitExceeded: loops on mlp ran longer than 0.5 s",
            "*where  *, in loops:  *",
            "*try    give it longer with --fx-timeout*",
            "mlp    next *",
        ]
    )


WAITS = """
import time

def waits(program): time.sleep(1.5)

def test_waits(fx_equal): fx_equal(waits)
"""


@pytest.mark.thorough
def test_a_test_that_cannot_be_interrupted_is_named_on_the_terminal_while_it_hangs(pytester, monkeypatch, capfd):
    monkeypatch.setattr("pytest_fx.processes.deadline.GRACE", 0.3)
    path = pytester.makepyfile(WAITS)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-timeout", "0.5", path)
    result.assert_outcomes(failed=1)
    written = capfd.readouterr().err
    assert "fx: waits on mlp ran longer than 0.5 s, and cannot be interrupted\n  where  " in written
    assert ", in waits:  def waits(program): time.sleep(1.5)\n" in written
    assert "  try    run with --fx-isolate" in written


def test_a_test_in_time_is_left_alone(pytester):
    path = pytester.makepyfile("def test_it(fx_traced, fx_equal): fx_equal(fx_traced)")
    pytester.runpytest("--fx-model", "mlp", "--fx-timeout", "60.5", path).assert_outcomes(passed=1)


MINE = """
import pytest, torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))
    def forward(self, x):
        self.count.add_(x.mean())
        return self.linear(x) * self.count

def counting():
    torch.manual_seed(0)
    return Counting(), torch.ones(1, 3)

def hangs(value):
    while True: pass

def hanging(program):
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        output.args = (program.graph.call_function(hangs, output.args),)
    program.recompile()

def before(program): pass
def after(program): pass

def test_before(fx_equal): fx_equal(before)
@pytest.mark.fx(timeout=1)
def test_hangs(fx_equal): fx_equal(hanging)
def test_after(fx_equal): fx_equal(after)
"""


@pytest.mark.thorough
def test_writes_of_an_interrupted_call_are_not_blamed_on_the_next_pass(mine):
    mine.makepyfile(test_it="from mine import test_before, test_hangs, test_after")
    result = mine.runpytest("--fx-model", "mine:counting", "test_it.py")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*mine.py:*: TimeLimitExceeded", "FAILED *test_hangs* - pytest_fx.errors.TimeLimit*"])


@pytest.mark.thorough
def test_ctrl_c_ends_a_run_whose_time_was_over_while_it_waited_outside_of_python(pytester):
    pytester.makepyfile(
        mine="""
        import os, signal, threading, time, torch

        def pair():
            return torch.nn.Linear(4, 4), torch.ones(1, 4)

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

        def sleeps(program):
            threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(60)
        """
    )
    options = ("--fx-model", "mine:pair", "--fx-pass", "mine:sleeps", "--fx-no-timing", "--fx-timeout", "1")
    result = pytester.runpytest_subprocess(*options, "-k", "keeps_its_contract", timeout=50)
    assert result.ret == 2
    result.stdout.fnmatch_lines("*KeyboardInterrupt*")


@pytest.mark.parametrize("options", [(), ("--fx-timeout", "60")])
def test_ctrl_c_in_a_pass_ends_the_run_with_or_without_a_limit_of_time(pytester, options):
    pytester.makepyfile(
        mine="""
        import torch

        def pair():
            return torch.nn.Linear(4, 4), torch.ones(1, 4)

        def interrupted(program):
            raise KeyboardInterrupt  # as Python's handler does

        def later(program):
            raise AssertionError("it runs after Ctrl-C")
        """
    )
    passes = ("--fx-pass", "mine:interrupted", "--fx-pass", "mine:later")
    run = ("--fx-model", "mine:pair", *passes, "--fx-no-timing", "-k", "test_pass_keeps_its_contract", *options)
    result = pytester.inline_run(*run, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not any(map(len, result.listoutcomes()))
