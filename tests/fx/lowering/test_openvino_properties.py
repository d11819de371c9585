"""Lowering to OpenVINO keeps the laws of passes on random programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fx.lowering import Lower, OpenVINO
from fx.lowering.openvino.predicates import converters
from pytest_fx.search.pass_check import check_pass

LOSES_NAN = (F.relu, F.hardtanh, F.hardsigmoid, torch.clamp, torch.maximum, torch.minimum)


@pytest.mark.thorough
@pytest.mark.skipif(OpenVINO().why_unavailable() is not None, reason=f"{OpenVINO().why_unavailable()}")
def test_random_programs_compute_the_same_in_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {target: one for target, one in converters._converters.items() if target not in LOSES_NAN}
    monkeypatch.setattr(converters, "_converters", kept)
    lower = Lower("openvino", min_size=1)
    check = partial(check_pass, lower, max_examples=15, min_changed=0.2, seed=1, seconds=60, folder=tmp_path)
    assert check(modes=("eval",)).name == "lower"
    check(modes=("train",), without=["gradients"])  # lowered weights are constants
