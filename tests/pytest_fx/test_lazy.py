"""Packages of the plugin that are imported when they are needed, and folders of users with their names."""

import sys

import pytest


@pytest.fixture
def run(pytester):
    """Run pytest as a module, which puts the current folder first on the import path."""
    pytester.makepyfile(test_of_the_user="def test_nothing(): pass")

    def run_in_folder(*arguments):
        return pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)

    return run_in_folder


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["fx/__init__.py", "fx/of_the_user.py", "model_zoo/__init__.py"])
def test_a_folder_of_the_users_with_a_name_of_ours_is_ignored_with_one_sentence(run, pytester, file):
    place = pytester.path / file
    place.parent.mkdir()
    place.touch()
    plain = run("test_of_the_user.py", "-W", "error")
    plain.assert_outcomes(passed=1)
    result = run("--fx-model", "mlp", "--fx-no-timing", "-k", "test_capture_equals_eager")
    assert result.parseoutcomes()["passed"] == 1
    warned = [line for line in result.errlines + result.outlines if "ShadowedPackageWarning" in line]
    assert len(warned) == 1
    assert f"{place.parent} is not found in this run" in warned[0]
    assert "rename it: one run cannot import both" in warned[0]


def test_a_package_of_the_users_that_is_imported_already_is_named_in_one_sentence(run, pytester):
    (pytester.path / "fx").mkdir()
    (pytester.path / "fx" / "__init__.py").touch()
    pytester.makeconftest("import fx")
    run("test_of_the_user.py").assert_outcomes(passed=1)
    result = run("--fx-model", "mlp", "--fx-no-timing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: pytest-fx needs its package 'fx', and another of that name is imported: */fx", "*try*rename it*"]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
