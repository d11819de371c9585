"""The options as ini settings."""

import sys
from pathlib import Path

import pytest

import pytest_fx


def test_settings_replace_options(pytester):
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


QUICK = ("-k", "own or test_capture_is_well_formed")


def test_a_model_in_the_ini_file_runs_the_suite_as_the_option_does(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp")
    result = pytester.runpytest("-v", "-k", "test_capture_is_well_formed or test_state")
    assert result.parseoutcomes()["passed"] == 2
    result.stdout.fnmatch_lines(["fx::test_capture_is_well_formed?mlp?*PASSED*", "*fx: verdicts*"])


@pytest.mark.parametrize("testpaths", ["", "testpaths = tests\n"])
def test_models_in_the_ini_file_add_the_suite_to_the_users_tests(pytester, testpaths):
    pytester.makeini(f"[pytest]\n{testpaths}fx_model = mlp")
    own = pytester.mkdir("tests") / "test_own.py"
    own.write_text("def test_own(fx_model):\n    assert fx_model.name == 'mlp'\ndef test_own_too(): pass")
    result = pytester.runpytest("-v", *QUICK)
    assert result.parseoutcomes()["passed"] == 3
    result.stdout.fnmatch_lines_random(
        ["tests/test_own.py::test_own?mlp? PASSED*", "*::test_own_too PASSED*", "fx::test_capture_is_well_formed?mlp?*"]
    )


@pytest.mark.thorough
def test_the_suite_of_the_ini_file_runs_where_the_plugin_is_installed_below_the_folder(pytester):
    """Settings such as in a project with its own virtual environment."""
    pytester.makeini("[pytest]\nfx_model = mlp")
    place = pytester.mkdir(".venv")
    (place / "pyvenv.cfg").write_text("")
    for package in ("fx", "model_zoo", "pytest_fx"):
        (place / package).symlink_to(Path(pytest_fx.__file__).parents[1] / package)
    code = f"import sys; sys.path.insert(0, {str(place)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    result = pytester.run(sys.executable, "-c", code, "-v", *QUICK)
    assert result.parseoutcomes()["passed"] == 1
    result.stdout.fnmatch_lines("fx::test_capture_is_well_formed?mlp?*PASSED*")


def test_files_on_the_command_line_run_without_the_suite_of_the_ini_file(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp\nfx_check = fuse-conv-bn\nfx_tables = ir-complexity")
    path = pytester.makepyfile("def test_own(fx_model):\n    assert fx_model.name == 'mlp'")
    pytester.runpytest(path).assert_outcomes(passed=1)
    assert not (pytester.path / "results").exists()


def test_an_option_runs_its_suite_alone_whatever_the_ini_file_says(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp\nfx_tables = ir-complexity")
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest("--fx-check", "fuse-conv-bn", "--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == ["fx::test_pass_keeps_the_laws[fuse-conv-bn]"]


def test_passes_in_the_ini_file_are_tried_on_random_programs(pytester):
    pytester.makeini("[pytest]\nfx_check = fuse-conv-bn")
    result = pytester.runpytest("--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == ["fx::test_pass_keeps_the_laws[fuse-conv-bn]"]


@pytest.mark.thorough
def test_the_suite_of_the_ini_file_runs_on_workers(pytester):
    pytester.makeini("[pytest]\nfx_model = mlp\nfx_no_timing = true")
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest("-n", "1", *QUICK)
    assert result.parseoutcomes()["passed"] == 2


@pytest.mark.parametrize(
    "setting, lines",
    [
        ("fx_model = mlpp", ["*fx_model in tox.ini: there is no model named 'mlpp'", "*did you mean 'mlp'?"]),
        ("fx_check = fuse-conv-nb", ["*fx_check in tox.ini: there is no pass named 'fuse-conv-nb'", "*fuse-conv-bn*"]),
        ("fx_tables = fussion", ["*fx_tables in tox.ini: there is no table named 'fussion'", "*'fusion'*"]),
        (
            "fx_models = mlp",
            ["*tox.ini has fx_models, which is not a setting; there are fx_model, fx_pass, *, fx_tables"],
        ),
        ("fx_batch = many", ["*fx_batch in tox.ini must be an integer from 1 on, not 'many'"]),
        ("fx_fail_slower = 5", ["ERROR: fx_fail_slower in tox.ini must be a percentage from 0 on, *not '5'"]),
        ("fx_timeout = soon", ["*fx_timeout in tox.ini must be a number of seconds above 0, not 'soon'"]),
        ("fx_size = huge", ["*fx_size in tox.ini must be full or small, not 'huge'"]),
        ("fx_no_timing = perhaps", ["ERROR: fx_no_timing in tox.ini must be true or false: *perhaps*"]),
        ("fx_strict = perhaps", ["ERROR: fx_strict in tox.ini must be true or false: *perhaps*"]),
    ],
)
def test_names_that_there_are_not_and_values_that_make_no_sense_are_usage_errors(pytester, setting, lines):
    pytester.makeini(f"[pytest]\n{setting}")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)


@pytest.mark.parametrize(
    "setting, message",
    [
        ("fx_model = mlpp", "there is no model named 'mlpp'"),
        ("fx_pass = fuse-conv-nb", "there is no pass named 'fuse-conv-nb'"),
        ("fx_model = mlp\nfx_dtype = float23", "there is no floating-point dtype named 'float23'"),
        ("fx_model = mlp\nfx_contract = exactly", "there is no contract 'exactly'"),
    ],
)
def test_names_that_there_are_not_are_reported_by_the_first_tests_that_use_them(pytester, setting, message):
    pytester.makeini(f"[pytest]\n{setting}")
    path = pytester.makepyfile("def test_own(fx_model, fx_pass): pass")
    result = pytester.runpytest(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(f"*fx_* in tox.ini: {message}*")
    result.stdout.no_fnmatch_line("*loading.py*")
