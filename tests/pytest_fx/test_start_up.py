"""Starting pytest with the plugin installed: nothing heavy is imported, nothing is said."""

LOADED = """
import sys

def test_loaded():
    assert "pytest_fx.plugin" in sys.modules
    heavy = {"torch", "fx", "model_zoo", "numpy", "pytest_fx.loading", "pytest_fx.suites.model_suite"}
    assert not heavy & set(sys.modules)
"""


def test_an_unused_plugin_imports_neither_torch_nor_fx(pytester, monkeypatch):
    path = pytester.makepyfile(LOADED)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others import what they like
    result = pytester.runpytest_subprocess("-p", "pytest_fx.plugin", path)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*fx:*")


def test_the_options_are_in_the_help(pytester):
    result = pytester.runpytest_subprocess("--help")
    for option in (
        *("--fx-model=NAME", "--fx-pass=NAME", "--fx-device=cpu|cuda", "--fx-dtype=NAME", "--fx-batch=N*"),
        *("--fx-threads=N*", "--fx-contract=TEXT", "--fx-rtol=X", "--fx-atol=X", "--fx-rounds=N"),
        *(
            "--fx-no-timing",
            "--fx-size=full|small",
            "--fx-seed=N",
            "--fx-check=NAME",
            "--fx-examples=N",
            "--fx-baseline=FILE",
            "--fx-fail-slower=PERCENT",
            "--fx-isolate",
            "--fx-timeout=SECONDS",
            "--fx-memory-limit=MIB",
        ),
    ):
        result.stdout.fnmatch_lines(f"*{option}*")


def test_the_fixtures_are_listed_with_their_purpose(pytester):
    result = pytester.runpytest_subprocess("--fixtures")
    for fixture in (
        *("fx_model", "fx_traced", "fx_pass", "fx_transformed"),
        *("fx_inputs", "fx_device", "fx_equal", "fx_timing", "fx_check_pass", "fx_checked_pass"),
    ):
        result.stdout.re_match_lines(rf"{fixture}( \[session scope\])? -- .*")
