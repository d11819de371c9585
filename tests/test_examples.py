"""The examples do what they say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fx
from model_zoo import get_model

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_fusion_of_the_paper_with_its_harness_takes_less_than_75_lines_and_fuses_a_resnet():
    path = EXAMPLES / "fusion.py"
    assert len(path.read_text("utf-8").splitlines()) < 75
    fold = runpy.run_path(str(path))["fold_batch_norms"]
    model = get_model("resnet_tiny").build().eval()
    inputs = get_model("resnet_tiny").example_inputs(2)
    fused = fold(fx.symbolic_trace(model))
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in fused.modules())
    torch.testing.assert_close(fused(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_the_harness_of_the_fusion_passes():
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "examples/fusion.py"]
    run = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "3 passed" in run.stdout
