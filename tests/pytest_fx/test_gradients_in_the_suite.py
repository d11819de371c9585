"""Gradients of what a pass makes of a model, beside the model's own: ``test_pass_keeps_gradients`` of the suite."""

import pytest

PASSES = """
import torch
from torch import nn
from fx.passes import approximate

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

def cut(program):
    return edited(program, torch.detach)

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
        return pytester.runpytest(*options, "-k", "test_pass_keeps_gradients or test_pass_keeps_its_contract")

    return run_suite


def test_a_pass_that_cuts_gradients_and_keeps_values_fails_by_them_alone(run):
    result = run("cut")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*law 'gradients': cut changes the gradient of first.weight", "*there is none any more"]
    )


def test_a_pass_that_keeps_gradients_passes(run):
    run("kept").assert_outcomes(passed=2)


@pytest.mark.parametrize("pass_", ["cut_on_purpose", "cut_and_approximate"])
def test_a_pass_that_promises_no_gradients_is_not_held_to_them(run, pass_):
    result = run(pass_)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(f"SKIPPED*{pass_.replace(chr(95), chr(45))} makes no promise about gradients")
