"""Programs on a CUDA device: the whole suite of each small model, with every pass."""

import pytest
import torch

import fx
from fx.passes import get_pass
from model_zoo import get_model, list_models
from pytest_fx.tables import Scale, get_table

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("name", [name for name in list_models() if get_model(name).small is None])
def test_the_suite_of_a_model_is_green_on_the_gpu(pytester, name):
    result = pytester.runpytest_subprocess(
        "--fx-model", name, "--fx-device", "cuda", "--fx-no-timing", "-p", "no:cacheprovider"
    )
    outcomes = result.parseoutcomes()
    assert result.ret == 0 and outcomes["passed"] > 20, outcomes


def test_float32_is_judged_in_float32_and_not_in_tf32(pytester):
    result = pytester.runpytest_subprocess(
        "--fx-model", "resnet_tiny", "--fx-device", "cuda", "--fx-no-timing", "--fx-pass", "fuse-conv-bn",
        "--fx-detect", "1e-4", "-p", "no:cacheprovider",
    )  # fmt: skip
    assert result.ret == 0, result.parseoutcomes()


@torch.no_grad()
def test_a_captured_model_is_moved_and_folded_on_the_gpu():
    model = get_model("resnet_tiny")
    program = fx.symbolic_trace(model.build().eval()).cuda()
    (images,) = (tensor.cuda() for tensor in model.example_inputs(4))
    wanted = program(images)
    folded = get_pass("fuse-conv-bn")(program) or program
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded(images), wanted, rtol=1e-2, atol=1e-2)  # in TF32


def test_an_estimate_is_reported_beside_the_time_on_the_gpu():
    table = get_table("simulation")
    row = next(row for row in table.rows(Scale(rounds=5)) if row.name == "resnet50, GPU, batch 32")
    numbers = table.numbers(row.measure())
    assert 0.1 < numbers["roofline_ratio"] < 10


PLACED = """
import torch
from torch import nn

class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4).cuda()

    def forward(self, x):
        return self.second(torch.relu(self.first(x)).cuda())

def net():
    return Placed().eval(), torch.ones(5, 8)
"""


def test_a_model_with_parts_on_the_cpu_and_the_gpu_stays_as_it_is_placed(pytester):
    pytester.makepyfile(placed=PLACED)
    result = pytester.runpytest_subprocess("--fx-model", "placed:net", "--fx-no-timing", "-p", "no:cacheprovider")
    assert result.ret == 0, result.parseoutcomes()
