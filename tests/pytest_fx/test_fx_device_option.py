"""--fx-device: the device of programs."""

import pytest
import torch

from pytest_fx.collection import ModelCase
from pytest_fx.errors import CannotLoadError
from pytest_fx.factories import load_subject

CHECK_DEVICE = """
def test_device(fx_model, fx_device, fx_inputs, fx_equal, fx_traced):
    assert fx_device.type == "{device}"
    assert all(tensor.device.type == "{device}" for tensor in fx_inputs.tensors)
    assert all(parameter.device.type == "{device}" for parameter in fx_traced.parameters())
    fx_equal(fx_traced)
"""


def test_programs_run_on_the_cpu_by_default(pytester):
    path = pytester.makepyfile(CHECK_DEVICE.format(device="cpu"))
    pytester.runpytest("--fx-model", "mlp", path).assert_outcomes(passed=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_model_inputs_and_program_are_on_the_gpu(pytester):
    path = pytester.makepyfile(CHECK_DEVICE.format(device="cuda"))
    pytester.runpytest("--fx-model", "mlp", "--fx-device", "cuda", path).assert_outcomes(passed=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_a_usage_error(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-device", "cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: there is no CUDA device to run on",
            "*torch * finds none",
            "  try    leave out --fx-device, or install a torch for this GPU",
        ]
    )


PLACED = """
import torch
from torch import nn

class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.elsewhere = nn.Linear(4, 4, device="meta")  # a second device that every machine has

    def forward(self, x):
        return torch.relu(self.first(x))

def net():
    return Placed().eval(), torch.ones(2, 3, 8, 8)
"""


def test_a_model_with_parts_on_several_devices_is_judged_where_it_is(pytester):
    pytester.makepyfile(placed=PLACED)
    result = pytester.runpytest("--fx-model", "placed:net", "--fx-pass", "fuse-conv-bn", "--fx-no-timing", "-rs")
    outcomes = result.parseoutcomes()
    assert "failed" not in outcomes and "errors" not in outcomes and outcomes["passed"] > 8, outcomes
    result.stdout.fnmatch_lines(["*the parts of placed:net are on several devices: a data-only file is loaded on one"])


def test_a_placed_model_is_not_moved_by_the_option(monkeypatch):
    namespace = {"__name__": "placed"}
    exec(PLACED, namespace)
    monkeypatch.setattr("pytest_fx.factories.check_device", lambda device: None)
    case = ModelCase(namespace["net"], None, "net", "cuda", None, 1, 0)
    with pytest.raises(CannotLoadError, match=r"net is not moved to one device[\s\S]*its parts on cpu, meta\n"):
        load_subject(case)
