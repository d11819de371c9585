"""The options as ini settings."""

import pytest


def test_settings_stand_in_for_options(pytester):
    pytester.makeini(
        "[pytest]\nfx_model =\n    mlp\n    two_heads\nfx_pass = fuse-conv-bn\nfx_batch = 3\nfx_threads = 2"
    )
    path = pytester.makepyfile(
        """
        def test_settings(fx_model, fx_pass, fx_timing):
            assert fx_model.batch == 3
            assert fx_pass.name == "fuse-conv-bn"
            assert fx_timing(fx_model.capture()).threads == 2
        """
    )
    result = pytester.runpytest(path, "--fx-rounds", "2")
    result.assert_outcomes(passed=2)


def test_the_command_line_wins(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp\nfx_batch = 3")
    path = pytester.makepyfile(
        "def test_batch(fx_model):\n    assert (fx_model.name, fx_model.batch) == ('two_heads', 5)"
    )
    pytester.runpytest(path, "--fx-model", "two_heads", "--fx-batch", "5").assert_outcomes(passed=1)


def test_models_in_the_ini_file_do_not_replace_the_users_tests_by_the_suite(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp")
    pytester.makepyfile("def test_own(fx_model):\n    assert fx_model.name == 'mlp'")
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "setting, message",
    [
        ("fx_batch = many", "fx_batch in the ini file must be an integer from 1 on, not 'many'"),
        ("fx_size = huge", "fx_size in the ini file must be full or small, not 'huge'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_usage_error(pytester, setting, message):
    pytester.makeini(f"[pytest]\n{setting}")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"*{message}")


@pytest.mark.parametrize(
    "setting, message",
    [
        ("fx_model = mlpp", "there is no model named 'mlpp'"),
        ("fx_pass = fuse-conv-nb", "there is no pass named 'fuse-conv-nb'"),
        ("fx_model = mlp\nfx_dtype = float23", "there is no floating-point dtype named 'float23'"),
        ("fx_model = mlp\nfx_contract = exactly", "there is no contract 'exactly'"),
    ],
)
def test_names_that_there_are_not_are_told_by_the_first_tests_that_use_them(pytester, setting, message):
    pytester.makeini(f"[pytest]\n{setting}")
    path = pytester.makepyfile("def test_own(fx_model, fx_pass): pass")
    result = pytester.runpytest(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(f"*::test_own: {message}*")
    result.stdout.no_fnmatch_line("*loading.py*")


@pytest.mark.parametrize("setting", ["fx_no_timing", "fx_strict"])
def test_a_flag_that_is_neither_true_nor_false_is_a_usage_error(pytester, setting):
    pytester.makeini(f"[pytest]\n{setting} = perhaps")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: {setting} in the ini file must be true or false: *perhaps*")
