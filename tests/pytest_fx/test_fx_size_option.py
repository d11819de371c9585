"""--fx-size: zoo models at full size, or their small siblings."""

import pytest

from model_zoo import get_model, list_models


@pytest.mark.parametrize("model, small", [("resnet50", "resnet_tiny"), ("mlp", "mlp")])
def test_a_model_is_replaced_by_its_small_sibling_unless_it_is_small_anyway(pytester, model, small):
    result = pytester.runpytest("--fx-model", model, "--fx-size", "small", "-k", "well_formed", "-v")
    result.stdout.fnmatch_lines(f"*well_formed?{small}?*PASSED*")


def test_every_full_model_has_a_small_sibling_that_exists():
    for name in list_models():
        model = get_model(name)
        assert ("small" in model.tags) != (model.small is not None)
        if model.small is not None:
            assert "small" in get_model(model.small).tags


@pytest.mark.parametrize("name", ["mine:pair", "mine:zoo"])
def test_a_factory_has_no_small_sibling_and_is_refused(user, name):
    result = user.runpytest("--fx-model", name, "--fx-size", "small")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            f"ERROR: there is no small {name}",
            "*only models of the zoo have small siblings",
            "*leave out --fx-size small",
        ]
    )


def test_all_models_can_be_small(pytester):
    result = pytester.runpytest("--fx-model", "all", "--fx-size", "small", "--collect-only", "-q", "-k", "well_formed")
    assert result.ret == 0
    result.stdout.fnmatch_lines("*well_formed?resnet_tiny?")
