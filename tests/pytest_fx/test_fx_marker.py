"""@pytest.mark.fx: options for one test."""

import pytest


def test_a_marker_names_models_passes_and_more(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        from fx.passes import FuseConvBN

        @pytest.mark.fx(model=["mlp", "two_heads"], pass_=[FuseConvBN()], batch=[2, 4], seed=3)
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


def test_a_factory_and_a_function_can_replace_names(pytester):
    path = pytester.makepyfile(
        """
        import pytest, torch

        def factory():
            return torch.nn.Linear(2, 2), torch.ones(1, 2)

        def leave(program):
            return program

        @pytest.mark.fx(model=factory, pass_=leave, contract="exact")
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
        pytestmark = pytest.mark.fx(model=["mlp"], batch=2)

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

        @pytest.mark.fx(models="mlp")
        def test_marked(fx_model):
            pass
        """
    )
    result = pytester.runpytest(path)
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        "*the marker fx has no keyword 'models'; it has model, pass_, check, *, no_timing, strict, estimate, inference*"
    )


@pytest.mark.parametrize("strict", [True, False])
def test_the_marker_is_registered(pytester, strict):
    path = pytester.makepyfile("import pytest\n@pytest.mark.fx(model='mlp')\ndef test_it():\n    pass")
    pytester.runpytest(path, *(["--strict-markers"] if strict else [])).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "keyword, message",
    [
        ("batch='x'", "batch in a marker fx must be an integer from 1 on, not 'x'"),
        ("batch=0", "batch in a marker fx must be an integer from 1 on, not '0'"),
        ("batch=[1, 2.5]", "batch in a marker fx must be an integer from 1 on, not '2.5'"),
        ("threads=[]", "threads in a marker fx must be an integer from 1 on, not ''"),
        ("rounds=-1", "rounds in a marker fx must be an integer from 1 on, not '-1'"),
        ("rounds=True", "rounds in a marker fx must be an integer from 1 on, not 'True'"),
        ("seed='one'", "seed in a marker fx must be an integer from 0 on, not 'one'"),
        ("rtol=-1.0", "rtol in a marker fx must be a number from 0 on, not '-1.0'"),
        ("device='tpu'", "device in a marker fx must be cpu or cuda, not 'tpu'"),
        ("size='tiny'", "size in a marker fx must be full or small, not 'tiny'"),
        ("fail_slower=-0.5", "fail_slower in a marker fx must be a percentage from 0 on, such as 5%, not *"),
        ("no_timing='no'", "no_timing in a marker fx must be True or False, not 'no'"),
        ("strict=1", "strict in a marker fx must be True or False, not 1"),
        ("dtype='float23'", "there is no floating-point dtype named 'float23'*"),
        ("dtype=3", "an int names no dtype*"),
        ("contract='exactly'", "there is no contract 'exactly'*"),
        ("model='mlpp'", "there is no model named 'mlpp'*"),
        ("model=3", "there is no model named '3'*"),
        ("model='mine:piar'", "there is no factory named 'mine:piar'*"),
        ("model='mine:pair', size='small'", "there is no small mine:pair*"),
        ("pass_=['fuse-conv-nb']", "there is no pass named 'fuse-conv-nb'*"),
        ("check='mine:scale'", "there is no pass named 'mine:scale'*"),
    ],
)
def test_a_marker_is_checked_as_the_command_line_is(user, keyword, message):
    path = user.makepyfile(f"import pytest\n@pytest.mark.fx({keyword})\ndef test_marked(fx_device): pass")
    result = user.runpytest(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(f"*::test_marked: {message}")
    result.stdout.no_fnmatch_line("*options.py*")


def test_a_marker_takes_values_and_their_command_line_spellings(pytester):
    path = pytester.makepyfile(
        """
        import pytest, torch
        from pytest_fx.options import options_of

        @pytest.mark.fx(batch="1,8", rounds="7", rtol="1e-3", dtype=torch.float64, fail_slower="5%", contract=None)
        def test_text(request):
            options = options_of(request.node)
            assert (options.batch, options.rounds, options.rtol) == ((1, 8), 7, 1e-3)
            assert options.fail_slower == 0.05

        @pytest.mark.fx(batch=[1, 8], rounds=7, rtol=1e-3, dtype="float64", fail_slower=0.05, strict=True)
        @pytest.mark.fx(no_timing=True)
        def test_values(request):
            options = options_of(request.node)
            assert (options.batch, options.rounds, options.rtol) == ((1, 8), 7, 1e-3)
            assert (options.fail_slower, options.strict, options.timing) == (0.05, True, False)

        @pytest.mark.fx(model="mlp", dtype=torch.float64)
        def test_dtype(fx_model):
            assert fx_model.dtype == torch.float64
        """
    )
    pytester.runpytest(path).assert_outcomes(passed=3)
