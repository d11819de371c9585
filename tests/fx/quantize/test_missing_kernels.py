"""Without oneDNN and FBGEMM in torch everything works but lowering to oneDNN, which explains that in a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from missing_kernels import PLATFORMS, Network, images
from selection import thorough_except

import fx
from fx.lowering.onednn import OneDNN
from fx.quantize import convert, prepare


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with a quantized program and a lowered one, made with all kernels that there are here."""
    folder = tmp_path_factory.mktemp("programs")
    network, data = Network().eval(), images()
    with torch.no_grad():
        prepared = prepare(fx.symbolic_trace(network))
        prepared(data)
        quantized = convert(prepared)
        quantized(data)  # kernels are chosen and weights packed, which must not be saved
        fx.save(quantized, folder / "quantized.fx")
        program = fx.symbolic_trace(network)
        if OneDNN().why_unavailable() is None:
            program = fx.lower(program, "onednn", (data,), min_size=1)
        program(data)
    torch.save(program, folder / "lowered.pt")
    return folder


def found_on(platform, folder):
    command = [sys.executable, str(Path(__file__).with_name("missing_kernels.py")), platform, str(folder)]
    if platform == "macOS on ARM":
        command.append("suite")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("platform", thorough_except(("Linux on ARM",), PLATFORMS))
def test_programs_are_captured_and_quantized_where_kernels_are_missing(platform, programs):
    figures = found_on(platform, programs)
    assert figures["capture"] > 100 and figures["fuse-conv-bn"] > 100
    for precision in ("int8", "dynamic", "weight-only"):
        assert min(figures[precision]) > 35 and figures[f"{precision} reference"] > 35
    assert figures["loaded"] > 35 and figures["lowered elsewhere"] > 100
    if PLATFORMS[platform].has_onednn:
        assert figures["lower"] > 100
        return
    assert figures["int8 kernels"] == figures["dynamic kernels"] == ["reference"]
    assert figures["int8"][0] == pytest.approx(figures["int8 reference"], abs=0.5)
    assert "the backend 'onednn' is not available here" in figures["lower"]
    assert "this PyTorch is built without oneDNN" in figures["lower"]
    assert figures.get("suite", 0) == 0
