"""The line on a pass whose patterns match nothing: the nearest place of the model, and what fails there."""

import pytest

MINE = """
import fx, torch
import torch.fx
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x))

def net():
    return Net(), torch.ones(2, 4)

def pattern(x):
    return torch.relu(torch.exp(x))

def replacement(x):
    return torch.exp(x)

def ours(program):
    fx.replace_pattern(program, pattern, replacement)

def theirs(program: torch.fx.GraphModule):
    torch.fx.replace_pattern(program, pattern, replacement)
    return program

def without_patterns(program):
    return program
"""
INDUCTOR = """
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, PatternMatcherPass, register_graph_pattern

aten = torch.ops.aten
inductors = PatternMatcherPass()

@register_graph_pattern(CallFunction(aten.relu.default, CallFunction(aten.exp.default, KeywordArg("x"))),
                        pass_dict=inductors)
def replace(match, x):
    match.replace_by_example(lambda x: torch.exp(x), [x])
"""
QUICK = ("--fx-no-timing", "-k", "keeps_its_contract", "-W", "ignore::FutureWarning")


def output_of(pytester, name):
    result = pytester.runpytest("--fx-model", "mine:net", "--fx-pass", f"mine:{name}", *QUICK)
    assert result.parseoutcomes().get("failed") is None
    return " ".join(result.stdout.str().split())


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_a_pass_that_matches_nothing_has_a_line_on_its_nearest_place(mine, name):
    output = output_of(mine, name)
    assert f"{name} of mine:net: no match; nearest is `%relu`" in output
    assert "mine.py:7), where 1 of 2 operations match: the pattern's `%relu` is fed by exp, here by sin" in output


def test_so_has_one_with_patterns_of_inductor(pytester):
    pytest.importorskip("torch._inductor.pattern_matcher")
    pytester.makepyfile(mine=MINE + INDUCTOR)
    assert "the pattern has aten.exp.default where the program has `%sin` (aten.sin.default)" in output_of(
        pytester, "inductors"
    )


def test_a_pass_without_patterns_has_no_such_line(mine):
    assert "no match" not in output_of(mine, "without_patterns")
