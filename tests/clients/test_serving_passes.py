"""Fusions after autograd, in the style of engines that serve language models, each judged on a small block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from selection import one_in
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_pass

from .serving_passes import (
    Block,
    FuseAddNormQuantization,
    FuseAddNormQuantizationWithOldResidual,
    FuseGateQuantization,
    FuseNormQuantization,
    FuseNormQuantizationWithOneEpsilon,
    Views,
    eliminate_noops,
)


def _broken_by(pass_: Any, module: nn.Module, *inputs: torch.Tensor) -> tuple[PassRun, list[str]]:
    subject = Subject("block", module, lambda number: Arguments(inputs), input_set_count=1, mode="eval")
    run = PassRun(subject, load_pass(pass_))
    assert run.not_judged is None
    violations = broken_laws(affordable(choose_laws((), (), may_change(run.pass_)), run), run)
    return run, [violation.law for violation in violations]


def _block(dtype: torch.dtype) -> tuple[Block, torch.Tensor, torch.Tensor]:
    """Return a block with inputs as small as those of a language model, for which the epsilon of a norm matters."""
    torch.manual_seed(0)
    return Block(dtype), 0.02 * torch.randn(3, 8), 0.02 * torch.randn(3, 8)


def _count(run: PassRun, operator: Any) -> int:
    """Return how often the result of a pass calls an operator, also through an operator of higher order."""
    assert run.form_result is not None and run.form_result.graph_module is not None
    return sum(operator in (node.target, *node.args[:1]) for node in run.form_result.graph_module.graph.nodes)


serving = torch.ops.serving


FUSIONS = [
    (kind, operator, count, dtype)
    for kind, operator, count in (
        (FuseNormQuantization, serving.rms_norm_quantized.default, 2),
        (FuseAddNormQuantization, serving.fused_add_rms_norm_quantized.default, 1),
        (FuseGateQuantization, serving.silu_and_mul_quantized.default, 1),
    )
    for dtype in (torch.int8, torch.float8_e4m3fn)
]


@pytest.mark.parametrize(
    "kind, operator, count, dtype",
    one_in(3, FUSIONS),
    ids=lambda value: str(value) if isinstance(value, torch.dtype) else None,
)
def test_a_fusion_with_a_quantization_is_right(kind, operator, count, dtype):
    run, broken = _broken_by(kind(), *_block(dtype))
    assert broken == []
    assert _count(run, operator) == count


def test_the_elimination_of_views_without_effect_is_right():
    torch.manual_seed(0)
    run, broken = _broken_by(eliminate_noops, Views(), torch.randn(3, 8))
    assert broken == []
    result = run.form_result
    assert result is not None and result.nodes_before is not None and result.nodes_after is not None
    assert result.nodes_after < result.nodes_before


@pytest.mark.parametrize(
    "kind", one_in(2, [FuseNormQuantizationWithOneEpsilon, FuseAddNormQuantizationWithOldResidual])
)
def test_a_wrong_fusion_with_a_quantization_is_wrong(kind):
    assert "contract" in _broken_by(kind(), *_block(torch.int8))[1]
