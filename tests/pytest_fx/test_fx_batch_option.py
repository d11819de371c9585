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


def test_several_sizes_are_tried_one_after_the_other_and_have_rows_of_their_own(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-batch", "2, 3,2", "-k", "test_capture_equals_eager", "-v")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*eager?mlp-batch2? PASSED*", "*eager?mlp-batch3? PASSED*"])
    result.stdout.fnmatch_lines(["mlp, batch 2 *capture *", "mlp, batch 3 *capture *"])


def test_a_factorys_inputs_have_that_many_samples_in_each_row(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-batch", "1,8", "-k", "test_capture_equals_eager", "-v")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["mine:pair, batch 1 *capture *", "mine:pair, batch 8 *capture *"])


def test_a_factorys_inputs_that_cannot_be_resized_are_refused_once_with_a_remedy(user):
    result = user.runpytest("--fx-model", "mine:pair_with_keywords", "--fx-batch", "8", "-k", "capture", "-rs")
    assert (result.parseoutcomes()["errors"], "passed" in result.parseoutcomes()) == (1, False)
    result.stdout.fnmatch_lines(
        [
            "E *CannotLoadError: the inputs of 'mine:pair_with_keywords' cannot have 8 sample(s)",
            "*where  --fx-batch 8",
            "*why    its input tensors share no first size: (2, 4), (4,)",
            "*try    return a ZooModel, whose example_inputs takes a batch; or leave out --fx-batch *",
        ]
    )
