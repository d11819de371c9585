"""--fx-batch: samples in the inputs of zoo models."""

import pytest

CHECK_BATCH = """
def test_batch(fx_model):
    assert fx_model.arguments().args[0].shape[0] == {batch}
    assert fx_model.batch == {batch}
"""


@pytest.mark.parametrize("options, batch", [((), 1), (("--fx-batch", "5"), 5)])
def test_a_zoo_model_gets_inputs_of_that_many_samples(pytester, options, batch):
    path = pytester.makepyfile(CHECK_BATCH.format(batch=batch))
    pytester.runpytest("--fx-model", "mlp", *options, path).assert_outcomes(passed=1)


@pytest.mark.parametrize("batch", ["0", "-1", "two"])
def test_a_batch_that_is_no_size_is_refused(pytester, batch):
    result = pytester.runpytest("--fx-batch", batch)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"*--fx-batch: must be a whole number from 1 on, not '{batch}'")
