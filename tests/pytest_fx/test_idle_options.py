"""Options that act on no test of a run are errors; settings of the ini file are defaults, and may be idle."""

import pytest

from pytest_fx.idle_options import EFFECTS, OF_ANY_RUN
from pytest_fx.option_table import SWITCHES, TABLE

OWN = """
import pytest

def test_without_fixtures():
    pass

def test_of_a_model(fx_traced):
    pass
"""


def test_every_option_has_an_effect():
    assert set(EFFECTS) == {*(option.flag for option in TABLE), *SWITCHES, "tables"} - {*OF_ANY_RUN}


@pytest.mark.parametrize(
    "options, why",
    [
        ("--fx-model mlp --fx-form functional --fx-capture symbolic", "*--fx-capture symbolic"),
        ("--fx-model mlp --fx-form aten --fx-capture guided --fx-pass remove-checks", "*--fx-capture guided"),
        ("--fx-pass remove-checks", "no test of the run asks for fx_pass"),
        ("--fx-examples 3 --fx-model mlp", "no test of the run asks for fx_check_pass or fx_mutated_pass"),
        ("--fx-mutate 3 --fx-model mlp", "no test of the run asks for fx_check_pass or fx_mutated_pass"),
        ("--fx-batch 3 --fx-check remove-checks", "no test of the run asks for fx_model"),
        ("--fx-rounds 3 --fx-model mlp --fx-no-timing", "the run takes no times (--fx-no-timing)"),
        ("--fx-threads 1,2 --fx-model mlp --fx-no-timing", "the run takes no times (--fx-no-timing)"),
        ("--fx-fail-slower 5% --fx-model mlp --fx-no-timing", "the run takes no times (--fx-no-timing)"),
        ("--fx-fail-slower 5% --fx-model mlp --benchmark-disable", "benchmarks are switched off*"),
        ("--fx-estimate --fx-model mlp --fx-no-timing", "the run takes no times (--fx-no-timing)"),
        ("--fx-rtol 1e-3 --fx-model mlp --fx-contract exact", "*tolerance of close, and --fx-contract is exact"),
        ("--fx-error-factor 3 --fx-model mlp --fx-contract approximate(30)", "*--fx-contract is approximate*"),
        ("--fx-tables-afresh --fx-model mlp", "no test of the run asks for table"),
        ("--fx-detect 1e-3 --fx-check remove-checks", "no test of the run asks for fx_equal"),
    ],
)
def test_an_option_that_acts_on_no_test_of_the_built_in_suites_is_refused(pytester, options, why):
    result = pytester.runpytest(*options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    flag = options.partition(" ")[0] if "--fx-form" not in options else "--fx-form"
    result.stderr.fnmatch_lines([f"ERROR: {flag} has no effect", f"  why    {why}", "  try    *"])


@pytest.mark.parametrize(
    "options, why",
    [
        ("--fx-pass remove-checks --fx-model mlp", "no test of the run asks for fx_pass"),
        ("--fx-check remove-checks", "no test of the run asks for fx_checked_pass"),
        ("--fx-draw pages --fx-model mlp", "no test of the run asks for drawn"),
        ("--fx-contract exact --fx-model mlp", "no test of the run asks for fx_equal or fx_check_pass or *"),
        ("--fx-dtype float64", "all tests that it is about are skipped, as no model or no pass is named"),
    ],
)
def test_an_option_that_acts_on_no_test_of_a_file_is_refused(pytester, options, why):
    result = pytester.runpytest(pytester.makepyfile(OWN), *options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {options.partition(' ')[0]} has no effect", f"  why    {why}", "  try    *"])


def test_a_model_of_the_command_line_is_idle_where_tests_name_their_own(pytester):
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("fx_model", ["mlp"], indirect=True)
        def test_own(fx_model): pass
        """
    )
    result = pytester.runpytest(path, "--fx-model", "two_heads")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*why    the tests name theirs themselves")


def test_a_pass_acts_on_the_model_of_a_marker(pytester):
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fx(model="mlp")
        def test_own(fx_equal, fx_pass):
            fx_equal(fx_pass)
        """
    )
    pytester.runpytest(path, "--fx-pass", "remove-checks").assert_outcomes(passed=1)
    result = pytester.runpytest(path, "--fx-pass", "remove-checks", "-k", "nothing_of_that_name")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED  # options of deselected tests are not reported as idle


def test_settings_of_the_ini_file_are_defaults_that_may_be_idle(pytester):
    pytester.makeini(
        "[pytest]\nfx_form = aten\nfx_rounds = 3\nfx_examples = 5\nfx_pass = remove-checks\nfx_fail_slower = 5%\n"
        "addopts = --fx-detect 1e-3 --fx-no-timing"
    )
    pytester.runpytest(pytester.makepyfile(OWN), "--fx-model", "mlp").assert_outcomes(passed=2)


def test_the_rerun_of_one_test_keeps_the_options_of_the_run(pytester):
    options = ("--fx-model", "mlp", "--fx-pass", "remove-checks", "--fx-rounds", "3")
    result = pytester.runpytest("fx::test_capture_is_well_formed[mlp]", *options)
    result.assert_outcomes(passed=1)
    result = pytester.runpytest(
        "fx::test_capture_is_well_formed[mlp]", *options, "--fx-form", "aten", "--fx-capture", "guided"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.thorough
def test_workers_report_an_idle_option(pytester):
    result = pytester.runpytest(
        "--fx-model", "mlp", "--fx-pass", "remove-checks", "--fx-form", "aten", "--fx-capture", "guided", "-n", "1"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines("--fx-form has no effect")


@pytest.mark.parametrize(
    "marker, message",
    [
        ('"mlp"', "the marker fx takes no positional arguments, and has 'mlp'"),
        ('model="mlp", form="aten", capture="guided"', "form in a marker fx has no effect"),
        ('model="mlp", rounds=3', "rounds in a marker fx has no effect"),
        ('model="mlp", pass_="remove-checks"', "pass_ in a marker fx has no effect"),
        ('model="mlp", contract="exact", rtol=1e-3', "rtol in a marker fx has no effect"),
    ],
)
def test_a_marker_that_does_not_act_on_its_test_is_an_error(pytester, marker, message):
    path = pytester.makepyfile(f"import pytest\n@pytest.mark.fx({marker})\ndef test_own(fx_equal): pass")
    result = pytester.runpytest(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*::test_own: {message}", "*  try    *"])


def test_options_of_a_marker_need_the_model_of_it(pytester):
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fx(dtype="bfloat16")
        @pytest.mark.parametrize("fx_model", ["mlp"], indirect=True)
        def test_own(fx_model): pass
        """
    )
    result = pytester.runpytest(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_own: dtype in a marker fx has no effect", "*  why    the test names its*"])


def test_the_marker_of_a_module_is_a_default_of_its_tests(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.fx(model="mlp", rounds=3)

        def test_one(fx_traced): pass
        def test_other(fx_device): pass
        """
    )
    pytester.runpytest(path).assert_outcomes(passed=2)
