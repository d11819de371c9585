"""An ``ExportPass`` and a quantizer for PT2E on a small ResNet and a small BERT, through ``--fx-pass``."""

from __future__ import annotations

import pytest

PASSES = """
import torch
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as ExportPass

aten = torch.ops.aten

class Clamp(ExportPass):
    # A ReLU is a clamp, and a hyperbolic tangent is written with a sigmoid.
    def call_operator(self, op, args, kwargs, meta):
        if op is aten.relu.default:
            return super().call_operator(aten.clamp_min.default, (args[0], 0), {}, meta)
        if op is aten.tanh.default:
            double = super().call_operator(aten.mul.Tensor, (args[0], 2), {}, meta)
            sigmoid = super().call_operator(aten.sigmoid.default, (double,), {}, meta)
            scaled = super().call_operator(aten.mul.Tensor, (sigmoid, 2), {}, meta)
            return super().call_operator(aten.sub.Tensor, (scaled, 1), {}, meta)
        return super().call_operator(op, args, kwargs, meta)
"""
QUANTIZER = """
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer, get_default_x86_inductor_quantization_config,
)

eight_bits = X86InductorQuantizer()
eight_bits.set_global(get_default_x86_inductor_quantization_config())
"""
MODELS = ("--fx-model", "resnet_tiny", "--fx-model", "bert_small")
OPTIONS = ("--fx-no-timing", "-k", "pass_keeps_its_contract", "--fx-require-change", "--fx-mode", "eval")


@pytest.mark.thorough
def test_an_export_pass_is_right_on_both_models(pytester):
    pytester.makepyfile(mine=PASSES)
    result = pytester.runpytest(*MODELS, *OPTIONS, "--fx-pass", "mine:Clamp")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])


@pytest.mark.thorough
def test_a_quantizer_is_right_on_both_models(pytester):
    pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    pytester.makepyfile(mine=QUANTIZER)
    result = pytester.runpytest(*MODELS, *OPTIONS, "--fx-pass", "mine:eight_bits")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
