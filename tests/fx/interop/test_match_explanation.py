"""``fx.explain_match``: the nearest place of a pattern without matches, and the first condition that fails there."""

import warnings

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

import fx
from fx.errors import PassError


class Chain(nn.Module):
    def forward(self, x):
        return torch.relu(torch.exp(torch.sin(x))) * 2


class Shared(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return torch.relu(y) * y


CASES = [
    (Chain, lambda x: torch.relu(torch.exp(torch.cos(x))), "relu", (2, 3), "`%exp` is fed by cos, here by sin"),
    (Chain, lambda x: torch.sigmoid(torch.exp(torch.sin(x))), "exp", (2, 3), "with sigmoid, the program with relu"),
    (Chain, lambda x: torch.relu(torch.exp(x)) * 3, "mul", (3, 3), "`%mul` has 2"),
    (
        Shared,
        lambda x: torch.relu(torch.exp(x)),
        "relu",
        (2, 2),
        "`%exp` matched, but its result is also used by `%mul`",
    ),
    (Chain, lambda x: torch.sigmoid(torch.cos(x)), None, (0, 2), "the program has no cos and no sigmoid"),
]


@pytest.mark.parametrize("trace", [fx.symbolic_trace, torch.fx.symbolic_trace], ids=["ours", "torch.fx"])
@pytest.mark.parametrize("model, pattern, node, counts, reason", CASES)
def test_the_nearest_place_and_the_first_failed_condition_are_named(trace, model, pattern, node, counts, reason):
    program = trace(model())
    explanation = fx.explain_match(program, pattern)
    assert explanation.matches == 0
    assert (explanation.node and explanation.node.name) == node
    assert (explanation.matched, explanation.operations) == counts
    assert reason in explanation.reason
    if node is not None and trace is fx.symbolic_trace:
        assert explanation.where.place in str(explanation)


@pytest.mark.parametrize("trace", [fx.symbolic_trace, torch.fx.symbolic_trace], ids=["ours", "torch.fx"])
def test_a_pattern_that_matches_needs_no_reason(trace):
    explanation = fx.explain_match(trace(Chain()), lambda x: torch.exp(torch.sin(x)))
    assert (str(explanation), explanation.reason) == ("1 match", None)


def test_the_place_between_two_operations_comes_before_the_edge_of_the_model():
    def mlp(x, weight, bias, second, third):
        return F.linear(F.relu(F.linear(x, weight, bias)), second, third)

    model = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2))
    explanation = fx.explain_match(fx.symbolic_trace(model), mlp)
    assert "is fed by relu, here by gelu" in explanation.reason


def test_arguments_that_torch_fx_compares_as_spelled_are_shown():
    program = torch.fx.symbolic_trace(lambda x: torch.softmax(x, dim=-1))
    explanation = fx.explain_match(
        program, SubgraphMatcher(torch.fx.symbolic_trace(lambda x: torch.softmax(x, -1)).graph)
    )
    assert "is called with x, dim=-1" in explanation.reason


@pytest.fixture(scope="module")
def inductor():
    return pytest.importorskip("torch._inductor.pattern_matcher")


@pytest.fixture(scope="module")
def exported():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return {model: torch.export.export(model(), (torch.ones(2),)).run_decompositions() for model in (Chain, Shared)}


def patterns_of(inductor, *operations, constant=None, check=None):
    """Return a pass with one pattern, a chain of operations of ATen from the last to the first."""
    expression = inductor.KeywordArg("x")
    for name in reversed(operations):
        target = getattr(torch.ops.aten, name)
        target = getattr(target, target.overloads()[0])
        constants = () if constant is None or name != operations[0] else (constant,)
        expression = inductor.CallFunction(target, expression, *constants)
    patterns = inductor.PatternMatcherPass()
    options = {} if check is None else {"extra_check": check}
    inductor.register_graph_pattern(expression, pass_dict=patterns, **options)(lambda match, x: None)
    return patterns


def test_a_pattern_of_inductor_is_explained(inductor, exported):
    def explain(*operations, model=Chain, **options):
        return fx.explain_match(exported[model], patterns_of(inductor, *operations, **options))

    other_input = explain("relu", "exp", "cos")
    assert (other_input.node.name, other_input.matched, other_input.operations) == ("relu", 2, 3)
    assert other_input.reason == "the pattern has aten.cos.default where the program has `%sin` (aten.sin.default)"
    assert other_input.where.file.endswith("test_match_explanation.py")
    other_user = explain("sigmoid", "exp")
    assert (other_user.node.name, other_user.matched) == ("exp", 1)
    assert other_user.reason == "the pattern continues with aten.sigmoid.default, the program with aten.relu.default"
    used_twice = explain("relu", "exp", model=Shared)
    assert used_twice.reason == "`%exp` is used by `%relu`, `%mul`, the pattern's aten.exp.default by 1 operation(s)"
    assert "2!=3" in explain("mul", "relu", constant=3).reason
    assert "refuses it" in explain("relu", "exp", check=lambda match: False).reason
    assert explain("relu", "exp").matches == 1
    assert explain("tanh").node is None


def test_what_cannot_be_explained_is_refused_in_a_sentence(inductor):
    patterns = patterns_of(inductor, "relu")
    with pytest.raises(PassError, match=r"explained in a torch\.fx\.GraphModule, not in Chain"):
        fx.explain_match(Chain(), patterns)
    with pytest.raises(PassError, match="explained in a captured program, not in 3"):
        fx.explain_match(3, torch.relu)
    with pytest.raises(PassError, match="a pattern is a function, a module, a graph or a matcher, not 3"):
        fx.explain_match(torch.fx.symbolic_trace(Chain()), 3)
