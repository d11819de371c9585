"""The patterns of Inductor's matcher are known to the search: their operators, and programs that they match."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.pattern_matcher import (
    CallFunction,
    CallFunctionVarArgs,
    Ignored,
    KeywordArg,
    ListOf,
    PatternMatcherPass,
    fwd_only,
    register_graph_pattern,
    register_replacement,
)

from pytest_fx import check_pass
from pytest_fx.errors import LawViolation
from pytest_fx.generation.transcription import transcribed
from pytest_fx.loading import load_pass
from pytest_fx.search.references import references_of

aten = torch.ops.aten
truncated_as_floored = PatternMatcherPass()
register_replacement(
    lambda x, y: aten.div.Tensor_mode(x.exp() + y, y, rounding_mode="trunc"),
    lambda x, y: aten.floor.default(aten.div.Tensor(x.exp() + y, y)),
    [torch.ones(2, 2), torch.ones(2, 2)],
    fwd_only,
    truncated_as_floored,
)


def registered(expression, check=lambda match: True):
    patterns = PatternMatcherPass()

    @register_graph_pattern(expression, extra_check=check, pass_dict=patterns)
    def replace(match, **inputs):
        return None

    return patterns


def test_the_operators_of_registered_patterns_are_mentioned():
    about = references_of(load_pass(registered(CallFunction(aten.amax.default, KeywordArg("x"), Ignored()))))
    assert about.operators == (aten.amax.default,)
    assert torch.amax in about.operations
    assert "flatten" not in about.operations  # an attribute of torch's classes


def test_a_pattern_is_a_program_with_samples_of_what_is_no_tensor():
    centered = CallFunction(
        aten.sub.Tensor, KeywordArg("x"), CallFunction(aten.amax.default, KeywordArg("x"), Ignored(), True)
    )
    (program,) = references_of(load_pass(registered(centered))).patterns
    x = torch.randn(3, 4)
    assert torch.equal(program(x), x - x.amax(-1, keepdim=True))
    assert "torch.ops.aten.amax.default(x, [-1], True)" in transcribed(program).source


@pytest.mark.parametrize(
    "expression",
    [CallFunctionVarArgs(aten.addmm.default), CallFunction(aten.cat.default, ListOf(KeywordArg("x")), 0)],
)
def test_a_pattern_that_leaves_open_what_is_called_is_no_program(expression):
    about = references_of(load_pass(registered(expression)))
    assert about.patterns == ()
    assert len(about.operators) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_replacement_of_several_operations_is_found_at_once(tmp_path):
    with pytest.raises(LawViolation, match=r"found after [1-9] program\(s\)"):
        check_pass(f"{__name__}:truncated_as_floored", max_examples=20, seed=0, folder=tmp_path)
