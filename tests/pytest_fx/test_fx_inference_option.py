"""--fx-inference: passes for inference, and the advice on gradients without it."""

import pytest
import torch
from torch import nn

from pytest_fx import LawViolation, check_program

pytestmark = pytest.mark.usefixtures("little_explored")

PASSES = """
import copy
import torch
from torch import nn
import fx

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))

def model():
    torch.manual_seed(0)
    return Model(), (torch.randn(3, 4),)

def cut_relu(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        with program.graph.inserting_after(node):
            detached = program.graph.call_method("detach", (node,))
        node.replace_all_uses_with(detached)
        detached.args = (node,)
    program.recompile()

def cut_and_forget(program):
    cut_relu(program)
    for node in program.graph.nodes:
        node.meta.clear()

class Cut:
    may_change = ("checks",)

    def __call__(self, program):
        cut_relu(program)

def cut_and_double(program):
    cut_relu(program)
    program.linear = copy.deepcopy(program.linear)
    program.linear.weight.data.mul_(2)

def in_training_mode(program):
    if program.training:
        cut_relu(program)
"""


@pytest.fixture
def run(pytester):
    pytester.makepyfile(passes=PASSES)
    pytester.syspathinsert()

    def run_suite(pass_, *more):
        chosen = ("--fx-model", "passes:model", "--fx-pass", f"passes:{pass_}", "-k", "test_pass_keeps_its_contract")
        return pytester.runpytest(*chosen, "--fx-no-timing", "-v", "-p", "no:cacheprovider", *more)

    return run_suite


@pytest.mark.parametrize(
    "pass_, advice",
    [
        ("cut_relu", "say that the pass is for inference: cut_relu.may_change = (*gradients*,)*--fx-inference*"),
        (
            "cut_and_forget",
            'say that the pass is for inference: cut_and_forget.may_change = ("gradients", "metadata")*',
        ),
        ("Cut", 'say that the pass is for inference: may_change = ("checks", "gradients") in the class Cut*'),
    ],
)
def test_a_broken_law_on_gradients_explains_how_to_declare_it(run, pass_, advice):
    result = run(pass_)
    result.assert_outcomes(failed=1)
    text = " ".join(result.stdout.str().split())
    start = text.index("try say that")
    for part in advice.split("*"):
        assert part in text[start : start + 300]


def test_a_pass_that_computes_something_else_gets_no_such_advice(run):
    result = run("cut_and_double")
    result.assert_outcomes(failed=1)
    assert "for inference" not in result.stdout.str()


def test_under_the_option_no_gradients_are_requested_and_the_row_says_so(run):
    result = run("cut_relu", "--fx-inference")
    result.assert_outcomes(passed=1)
    assert "gradients" in result.stdout.str() and "--fx-inference" in result.stdout.str()


def test_random_programs_are_in_evaluation_mode_under_the_option(pytester, monkeypatch):
    searches = []
    monkeypatch.setattr("pytest_fx.search.pass_check.check_pass", lambda pass_, **given: searches.append(given))
    pytester.makepyfile(passes=PASSES)
    pytester.syspathinsert()
    chosen = ("--fx-check", "passes:cut_relu", "-p", "no:cacheprovider")
    for options in (chosen, (*chosen, "--fx-inference")):
        pytester.runpytest(*options).assert_outcomes(passed=1)
    assert "modes" not in searches[0] and "without" not in searches[0]
    assert searches[1]["modes"] == ("eval",) and searches[1]["without"] == ("gradients",)


def test_a_pass_that_cuts_gradients_in_training_mode_alone_is_told_to_leave_it_alone():
    def detached_in_training(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.relu) if program.training else ():
            with program.graph.inserting_before(node):
                node.args = (program.graph.call_method("detach", node.args),)
        program.recompile()

    class Relu(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    def inputs():
        return (torch.arange(6.0) - 3,), {}

    check_program(detached_in_training, Relu, inputs)
    with pytest.raises(LawViolation, match=r"leave programs in training mode alone .*--fx-inference asks for no"):
        check_program(detached_in_training, Relu, inputs, mode="train")


@pytest.mark.thorough
def test_a_search_under_the_option_finds_no_fault_in_a_pass_that_cuts_gradients(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.search.search.SHRINKING", 1.0)
    pytester.makepyfile(passes=PASSES)
    pytester.syspathinsert()
    chosen = ("--fx-check", "passes:cut_relu", "--fx-examples", "12", "-p", "no:cacheprovider", "-q")
    failing = pytester.runpytest(*chosen)
    failing.assert_outcomes(failed=1)
    assert "cut_relu.may_change" in failing.stdout.str()
    few = ("--fx-check", "passes:cut_relu", "--fx-examples", "4", "-p", "no:cacheprovider", "-q", "--fx-inference")
    pytester.runpytest(*few).assert_outcomes(passed=1)
    trained = ("--fx-check", "passes:in_training_mode", *chosen[2:])
    failing = pytester.runpytest(*trained)
    failing.assert_outcomes(failed=1)
    assert "leave programs in training mode alone" in failing.stdout.str()


def test_a_marker_says_so_for_one_test(pytester):
    pytester.makepyfile(
        passes=PASSES,
        test_mine="""
        import pytest

        @pytest.mark.fx(inference=True)
        def test_it(fx_equal):
            fx_equal("passes:cut_relu")
        """,
    )
    pytester.syspathinsert()
    pytester.runpytest("--fx-model", "passes:model", "test_mine.py", "-p", "no:cacheprovider").assert_outcomes(passed=1)
