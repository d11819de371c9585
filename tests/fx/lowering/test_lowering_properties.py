"""Lowering to oneDNN, and to OpenVINO, keeps the laws of passes on random programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F

from fx.lowering import Lower, OneDNN, OpenVINO
from fx.lowering.onednn import modules, operations
from fx.lowering.onednn.network import FusedRegion
from fx.lowering.openvino.operations import converters
from pytest_fx.generation.strategy import programs
from pytest_fx.search.pass_check import check_pass

EXAMPLES = 30 if hypothesis.settings().max_examples > 100 else 20  # 100 is Hypothesis's own default
"""The number of programs that are tried: more if ``make properties`` asks for them."""
LOSES_NAN = ("relu", "hardtanh", "hardsigmoid")
ENGINES_LOSE_NAN = (F.relu, F.hardtanh, F.hardsigmoid, torch.clamp, torch.maximum, torch.minimum)


@pytest.mark.thorough
@pytest.mark.skipif(OneDNN().why_unavailable() is not None, reason="no oneDNN")
def test_random_programs_compute_the_same_on_every_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    activate = FusedRegion.activate

    def activate_what_keeps_nan(self: FusedRegion, input: Any, activation: modules.Activation) -> Any:
        return None if activation.name in LOSES_NAN else activate(self, input, activation)

    monkeypatch.setattr(FusedRegion, "activate", activate_what_keeps_nan)
    monkeypatch.setattr(modules, "LEAST_WORK", 0)
    monkeypatch.setattr(modules, "LEAST_LINEAR_WORK", 0)
    monkeypatch.setattr(operations, "LEAST_LINEAR_WORK", 0)
    monkeypatch.setattr(operations, "_SMALLEST_WEIGHT", 0)
    monkeypatch.setattr(OneDNN, "flops_per_operation", 0.0)
    check = partial(check_pass, Lower(), max_examples=EXAMPLES, min_changed=0.2, seed=1, folder=tmp_path)
    assert check(modes=("eval",)).name == "lower"
    check(modes=("train",), without=("gradients",))  # lowered weights are constants


@pytest.mark.thorough
@pytest.mark.skipif(OpenVINO().why_unavailable() is not None, reason=f"{OpenVINO().why_unavailable()}")
def test_random_programs_compute_the_same_in_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = {
        target: converter for target, converter in converters._converters.items() if target not in ENGINES_LOSE_NAN
    }
    monkeypatch.setattr(converters, "_converters", remaining)
    lower = Lower("openvino", min_size=1)
    # Given programs: an engine takes a second to build, and the default search would build hundreds.
    drawn = programs(steps=8)
    options = {"max_examples": 10, "min_changed": 0.2, "seed": 1, "seconds": 60, "programs": drawn}
    check = partial(check_pass, lower, **options, folder=tmp_path)
    assert check(modes=("eval",)).name == "lower"
    check(modes=("train",), without=["gradients"])  # lowered weights are constants
