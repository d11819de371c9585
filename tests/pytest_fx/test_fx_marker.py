"""@pytest.mark.fx: options for one test."""

import pytest


def test_a_marker_names_models_passes_and_more(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        from fx.passes import FuseConvBN

        @pytest.mark.fx(models=["mlp", "two_heads"], passes=[FuseConvBN()], batch=[2, 4], seed=3)
        def test_marked(fx_model, fx_pass):
            assert fx_pass == FuseConvBN()
            assert fx_model.batch in (2, 4)

        def test_unmarked(fx_model):
            assert fx_model.name == "resnet_tiny" and fx_model.batch == 1
        """
    )
    result = pytester.runpytest(path, "--fx-model", "resnet_tiny", "-v")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(
        ["*test_marked?mlp-batch2-fuse-conv-bn? PASSED*", "*two_heads-batch4-fuse-conv-bn? PASSED*"]
    )


def test_a_factory_and_a_function_can_stand_in_for_names(pytester):
    path = pytester.makepyfile(
        """
        import pytest, torch

        def factory():
            return torch.nn.Linear(2, 2), torch.ones(1, 2)

        def leave(program):
            return program

        @pytest.mark.fx(models=factory, passes=leave, contract="exact")
        def test_marked(fx_model, fx_pass, fx_equal):
            fx_equal(fx_pass)
        """
    )
    result = pytester.runpytest(path, "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("*test_marked?factory-leave? PASSED*")


def test_the_marker_nearer_to_the_test_wins(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.fx(models=["mlp"], batch=2)

        @pytest.mark.fx(batch=3)
        def test_near(fx_model):
            assert (fx_model.name, fx_model.batch) == ("mlp", 3)

        def test_far(fx_model):
            assert (fx_model.name, fx_model.batch) == ("mlp", 2)
        """
    )
    pytester.runpytest(path).assert_outcomes(passed=2)


def test_an_unknown_keyword_lists_those_there_are(pytester):
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fx(model="mlp")
        def test_marked(fx_model):
            pass
        """
    )
    result = pytester.runpytest(path)
    assert result.ret != 0
    result.stdout.fnmatch_lines("*the marker fx has no keyword 'model'; it has models, passes, device, *")


@pytest.mark.parametrize("strict", [True, False])
def test_the_marker_is_registered(pytester, strict):
    path = pytester.makepyfile("import pytest\n@pytest.mark.fx(models='mlp')\ndef test_it():\n    pass")
    pytester.runpytest(path, *(["--strict-markers"] if strict else [])).assert_outcomes(passed=1)
