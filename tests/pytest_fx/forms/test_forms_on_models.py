"""An ``ExportPass`` and a quantizer for PT2E on a small ResNet and a small BERT, through ``--fx-pass``."""

from __future__ import annotations

import warnings

import pytest

MINE = """
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
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer, get_default_x86_inductor_quantization_config,
)
import model_zoo

def x86():
    return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())

eight_bits = x86()

def exported_and_quantized(module: nn.Module) -> nn.Module:
    zoo = model_zoo.get_model("resnet_tiny" if hasattr(module, "conv1") else "bert_small")
    data = [zoo.example_inputs(batch=4, seed=seed) for seed in range(4)]
    batch = [{0: torch.export.Dim.DYNAMIC} for _ in data[0]]
    exported = torch.export.export(module, data[0], dynamic_shapes=batch, strict=True)
    prepared = prepare_pt2e(exported.module(), x86())
    for example in data:
        prepared(*example)
    return convert_pt2e(prepared)

exported_and_quantized.may_change = ("sizes",)

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.second(self.relu(self.first(x))) + x)

def residual():
    torch.manual_seed(0)
    return Residual(), torch.randn(3, 2, 5, 5)
"""
OPTIONS = ("--fx-no-timing", "-k", "pass_keeps_its_contract", "--fx-require-change", "--fx-mode", "eval")
ZOO = ("--fx-model", "resnet_tiny", "--fx-model", "bert_small")
UNTRAINED = ("--fx-contract", "approximate(sqnr_db=10)")  # 8 bits keep 13 dB of the small ResNet, which is not trained


@pytest.mark.thorough
def test_an_export_pass_is_right_on_both_models(mine):
    result = mine.runpytest(*ZOO, *OPTIONS, "--fx-pass", "mine:Clamp")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])


@pytest.fixture(scope="module")
def torchao():
    """The library, imported before pytester notes what is imported: it cannot be imported twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")


@pytest.fixture
def quantized(torchao, pytester):
    """Runs pytest on passes of a file with a quantizer of torchao."""
    pytester.makepyfile(mine=QUANTIZER)
    return lambda *options: pytester.runpytest(*OPTIONS, *options, "-v", "-p", "no:logging")


@pytest.mark.thorough
@pytest.mark.parametrize("name, form", [("eight_bits", "quantizer"), ("exported_and_quantized", "module")])
def test_a_quantizer_is_right_on_both_models(quantized, name, form):
    result = quantized(*ZOO, "--fx-pass", f"mine:{name}", *UNTRAINED)
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines([f"resnet_tiny *right *{form}*", f"bert_small *right *{form}*"])


def test_a_quantizer_that_matches_whole_modules_gets_a_strict_export(quantized):
    """``torch.export`` without ``strict`` merges the two calls of one ReLU for torchao, which then fails."""
    result = quantized("--fx-model", "mine:residual", "--fx-pass", "mine:eight_bits")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["mine:residual *right *quantizer*"])
