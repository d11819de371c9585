"""--fx-dtype: the dtype that programs work in."""

import pytest


def test_parameters_and_outputs_are_in_that_dtype_and_the_reference_is_float64(pytester):
    path = pytester.makepyfile(
        """
        import torch

        def test_dtype(fx_model, fx_traced, fx_equal):
            assert {parameter.dtype for parameter in fx_traced.parameters()} == {torch.bfloat16}
            comparison = fx_equal(fx_traced)
            assert comparison.actual[0].dtype == torch.bfloat16
            assert comparison.eager64[0].dtype == torch.float64
            assert 1e-4 < comparison.largest_eager_error() < 1e-1
        """
    )
    result = pytester.runpytest("--fx-model", "mlp", "--fx-dtype", "bfloat16", "-v", path)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("mlp *bfloat16*")


@pytest.mark.thorough
def test_the_suite_passes_in_half_precision(pytester):
    result = pytester.runpytest("--fx-model", "resnet_tiny", "--fx-dtype", "bfloat16", "--fx-no-timing")
    assert result.ret == 0
