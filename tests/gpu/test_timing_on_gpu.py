"""Times and memory on a CUDA device."""

import pytest
import torch
from torch import nn

from pytest_fx.timing.memory import peak_memory
from pytest_fx.timing.paired import time_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_the_device_is_timed_and_not_the_launches():
    matrix = torch.randn(8192, 8192, device="cuda")
    timing = time_pairs(lambda: matrix @ matrix @ matrix, lambda: matrix @ matrix, rounds=5, device="cuda")
    assert 1.5 < timing.speedup < 2.5
    assert min(timing.transformed) > 1e-3


def test_the_host_is_free_again_long_before_the_device_is_done():
    matrix = torch.randn(8192, 8192, device="cuda")
    timing = time_pairs(lambda: matrix @ matrix, lambda: matrix @ matrix, rounds=5, device="cuda")
    assert len(timing.eager_host) == len(timing.transformed_host) == 5
    assert max(timing.transformed_host) < min(timing.transformed)


def test_peak_memory_is_that_of_the_values_alive_at_a_time():
    start = torch.ones(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    assert peak_memory(lambda: (start + 1) * 2, "cuda") == 2 * start.nbytes
    assert peak_memory(lambda: start.view(-1), "cuda") == 0


def test_the_plugin_times_on_the_device(pytester):
    result = pytester.runpytest(
        "--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "--fx-device", "cuda", "--fx-rounds", "5",
        "-k", "timing", "--benchmark-json=out.json",
    )  # fmt: skip
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    text = (pytester.path / "out.json").read_text()
    assert '"device": "cuda"' in text
    assert '"host_seconds"' in text


def test_the_working_arrays_of_an_operator_count():
    convolution = nn.Conv2d(64, 64, 3, padding=1).cuda()
    images = torch.randn(8, 64, 64, 64, device="cuda")
    with torch.no_grad():
        convolution(images)
    assert peak_memory(lambda: convolution(images), "cuda") >= images.nbytes
