"""What the guides named before the plugin's modules stood in rooms goes on working."""

import pytest


@pytest.mark.thorough
def test_a_conftest_imports_columns_and_earlier_runs_as_before(pytester):
    pytester.makeconftest(
        """
        from pytest_fx.storage.baseline import Change, Measurement
        from pytest_fx.summary import Column

        def pytest_fx_summary_columns(): return [Column("kind", lambda row: "mine")]
        """
    )
    result = pytester.runpytest_subprocess("--fx-model", "mlp", "--fx-no-timing", "-k", "test_capture_equals_eager")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*kind*", "*mine*"])


@pytest.mark.thorough
def test_the_suite_goes_by_its_earlier_name_on_the_command_line(pytester):
    path = pytester.makepyfile("def test_own(): pass")
    options = ("--fx-model", "mlp", "--fx-no-timing", "-k", "own or test_capture_equals_eager")
    result = pytester.runpytest_subprocess("--pyargs", "pytest_fx.suite", path, *options)
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
