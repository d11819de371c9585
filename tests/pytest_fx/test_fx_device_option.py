"""--fx-device: the device of programs."""

import pytest
import torch

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
