"""A verdict rests on something that was compared, on inputs that both sides take, and forgives nothing in silence."""

import json

import pytest

MINE = """
import operator
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.inner, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        y = torch.relu(self.inner(x)).sigmoid()
        return self.then(x, y)


def head(then):
    torch.manual_seed(0)
    return Head(then).eval(), torch.ones(3, 4)


def detector():
    return head(lambda x, y: y[y[:, 0] > 2])


def lost_in_nan():
    return head(lambda x, y: torch.log(-1 - y))


def boxes_and_size():
    return head(lambda x, y: {"boxes": y[y[:, 0] > 2], "size": 640})


def usual():
    return head(lambda x, y: y)


class Checked(nn.Module):
    def forward(self, x):
        torch._assert(x[0, 0] == 1, "only ones")
        return torch.relu(x) * 2


def checked():
    return Checked(), torch.ones(2, 4)


class Rounded(nn.Module):
    def forward(self, x):
        return torch.floor(x / 41)


def rounded():
    return Rounded(), torch.arange(11.0, 75.0).reshape(8, 8)


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x.to(torch.bfloat16).to(torch.float32))


def halved():
    torch.manual_seed(0)
    return Halved().eval(), torch.randn(4, 8)


def tanh_for_relu(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.tanh
    program.recompile()


def relu_by_name(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.op, node.target = "call_method", "relu"
    program.recompile()


def refusing(program):
    _refuse(program, lambda graph, x: graph.call_function(operator.getitem, (x, (0, 0))), 1)


def refusing_all(program):
    _refuse(program, lambda graph, x: graph.call_method("dim", (x,)), 7)


refusing_all.name = "refusing"


def _refuse(program, asked, value):
    graph = program.graph
    x, following = list(graph.nodes)[:2]
    with graph.inserting_before(following):
        holds = graph.call_function(operator.eq, (asked(graph, x), value))
        graph.call_function(torch._assert, (holds, "refusing takes other inputs"))
    relu_by_name(program)


def by_its_inverse(program):
    for node in program.graph.find_nodes(op="call_function", target=operator.truediv):
        node.target, node.args = operator.mul, (node.args[0], 1 / 41)
    program.recompile()


def keep_float32(program):
    for node in program.graph.find_nodes(op="call_method", target="to"):
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    program.recompile()
"""
KEEPS = ("--fx-no-timing", "-k", "test_pass_keeps_its_contract")


@pytest.fixture
def judge(pytester):
    """Run the suite on a model and a pass of the user's, and return the result with the verdict that was recorded."""
    pytester.makepyfile(mine=MINE)

    def run(model, pass_, *options):
        result = pytester.runpytest("--fx-model", f"mine:{model}", "--fx-pass", pass_, *KEEPS, *options)
        record = json.loads((pytester.path / ".pytest_fx" / "last_run.json").read_text())
        return result, record["verdicts"][-1]["verdict"]

    return run


@pytest.mark.parametrize(
    "model, reason",
    [
        ("detector", "all outputs are empty"),
        ("boxes_and_size", "all outputs are empty"),
        ("lost_in_nan", "no output is a finite number"),
    ],
)
def test_a_wrong_pass_of_which_nothing_was_compared_is_not_judged(judge, model, reason):
    result, verdict = judge(model, "mine:tanh_for_relu")
    result.assert_outcomes(skipped=1)
    assert verdict == "not judged"
    result.stdout.fnmatch_lines(f"fx: not judged: {reason}: tanh-for-relu of mine:{model}")


@pytest.mark.parametrize("option", [("--fx-detect", "1e-4"), ("--fx-strict",)])
def test_a_demanded_verdict_fails_where_nothing_was_compared(judge, option):
    result, _ = judge("detector", "mine:tanh_for_relu", *option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *CoarseVerdict: tanh-for-relu is not judged on *", f"*why *{option[0]} asks for *"])


def test_the_same_pass_is_wrong_where_something_is_compared(judge):
    result, verdict = judge("usual", "mine:tanh_for_relu")
    result.assert_outcomes(failed=1)
    assert verdict == "wrong"


@pytest.mark.parametrize("pass_", ["remove-checks", "mine:refusing"])
def test_inputs_that_only_one_side_takes_are_not_compared(judge, pass_):
    result, verdict = judge("checked", pass_)
    result.assert_outcomes(passed=1)
    assert verdict == "right"


def test_a_program_that_refuses_all_inputs_is_not_judged(judge):
    result, verdict = judge("usual", "mine:refusing_all")
    result.assert_outcomes(skipped=1)
    assert verdict == "not judged"
    result.stdout.fnmatch_lines("fx: not judged: eager and the program both take none of the inputs: *")


def test_a_difference_that_is_forgiven_is_a_verdict_of_its_own(judge):
    result, verdict = judge("rounded", "mine:by_its_inverse")
    result.assert_outcomes(passed=1)
    assert verdict == "right, with a waiver"
    result.stdout.fnmatch_lines(
        ["mine:rounded *by-its-inverse *right, with a waiver*", "fx: right, with a waiver, ill-conditioned*"]
    )
    result, _ = judge("rounded", "mine:by_its_inverse", "--fx-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *CoarseVerdict: by-its-inverse keeps *only with a waiver", "*try *"])


def test_a_rounding_that_the_model_asks_for_is_kept(judge):
    result, verdict = judge("halved", "mine:keep_float32")
    result.assert_outcomes(failed=1)
    assert verdict == "wrong"
