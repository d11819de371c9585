"""--fx-seed: the seed of example inputs."""

import pytest

SEE_INPUTS = """
import torch
from model_zoo import get_model

def test_inputs(fx_model):
    for input_set in (0, 1):
        expected, = get_model("mlp").example_inputs(batch=1, seed={seed} + input_set)
        assert torch.equal(fx_model.arguments(input_set).args[0], expected)
"""


@pytest.mark.parametrize("options, seed", [((), 0), (("--fx-seed", "17"), 17)])
def test_inputs_are_drawn_from_the_seed(pytester, options, seed):
    path = pytester.makepyfile(SEE_INPUTS.format(seed=seed))
    pytester.runpytest("--fx-model", "mlp", *options, path).assert_outcomes(passed=1)


def test_a_factory_that_returns_its_inputs_has_none_that_could_be_drawn(user):
    path = user.makepyfile("def test_own(fx_model): pass")
    result = user.runpytest("--fx-model", "mine:pair", "--fx-seed", "7", path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *the inputs of 'mine:pair' are not drawn from a seed", "*where  --fx-seed 7"])
    user.runpytest("--fx-model", "mine:zoo", "--fx-seed", "7", path).assert_outcomes(passed=1)
    user.makeini("[pytest]\nfx_seed = 7")
    user.runpytest("--fx-model", "mine:pair", path).assert_outcomes(passed=1)
