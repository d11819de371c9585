"""Gradients of a transformed model, compared with the model's own."""

import pytest

PASSES = """
import torch
from torch import nn
from fx.passes import Edit, RewritingPass, approximate

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def model():
    torch.manual_seed(0)
    return Model(), (torch.randn(8, 4),)

def edited(program, function):
    relu = next(node for node in program.graph.nodes if node.target is torch.relu)
    with program.graph.inserting_after(relu):
        made = program.graph.call_function(function, (relu,))
    relu.replace_all_uses_with(made)
    made.args = (relu,)
    program.recompile()
    return program

class Cut(RewritingPass):
    def rewrites(self, program):
        relu = next(node for node in program.graph.nodes if node.target is torch.relu)
        yield Edit("relu is cut off", relu.source)
        edited(program, torch.detach)

def written_over(program):
    relu = next(node for node in program.graph.nodes if node.target is torch.relu)
    (second,) = relu.users
    with program.graph.inserting_before(second):
        squared = program.graph.call_function(torch.mul, (relu, relu))
        root = program.graph.call_function(torch.sqrt, (squared,))
    with program.graph.inserting_after(root):
        program.graph.call_method("mul_", (relu, 1.0))
    second.args = (root,)
    program.recompile()

def kept(program):
    return edited(program, torch.clone)

def cut_on_purpose(program):
    return edited(program, torch.detach)
cut_on_purpose.may_change = ("gradients",)

def cut_and_approximate(program):
    return edited(program, torch.detach)
cut_and_approximate.contract = approximate(sqnr_db=20)
"""


@pytest.fixture
def run(pytester):
    pytester.makepyfile(trained=PASSES)
    pytester.syspathinsert()

    def run_suite(pass_):
        options = ("--fx-model", "trained:model", "--fx-pass", f"trained:{pass_}", "--fx-no-timing", "-rs")
        return pytester.runpytest(*options, "-k", "test_pass_keeps_its_contract")

    return run_suite


def test_a_pass_that_cuts_gradients_and_keeps_values_is_reported_with_the_edit_and_the_node(run, pytester):
    result = run("Cut")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*law 'gradients': cut changes the gradient of first.*",
            "*there is none any more",
            "*the first edit that goes wrong: edit 1 of cut: relu is cut off (trained.py:*",
            "*the first node whose gradient differs, from the output on:",
            "*%detach = call_function[[]torch.detach[]](%relu)",
            "*where*trained.py:*return self.second(torch.relu(self.first(x)))*",
            "*the gradient of relu[[]*] is * in the original, and there*",
            "*a test of * nodes that shows it alone:*",
        ]
    )
    (test,) = pytester.path.glob(".pytest_fx/*/test_*.py")
    pytester.runpytest(test).assert_outcomes(failed=1)


def test_the_error_of_autograd_is_shown(run):
    result = run("written_over")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*law 'gradients': what written-over makes cannot be differentiated, where eager can",
            "*RuntimeError: one of the variables needed for gradient computation has been*",
        ]
    )


def test_a_pass_that_keeps_gradients_passes(run):
    run("kept").assert_outcomes(passed=1)


@pytest.mark.parametrize("pass_", ["cut_on_purpose", "cut_and_approximate"])
def test_gradients_are_not_judged_for_a_pass_that_promises_none(run, pass_):
    run(pass_).assert_outcomes(passed=1)
