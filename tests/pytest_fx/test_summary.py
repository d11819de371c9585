"""pytest_fx.summary: the table at the end of a run."""

from dataclasses import asdict, replace
from types import SimpleNamespace

from pytest_fx.storage.baseline import Change, Measurement
from pytest_fx.summary import CHANGE, COLUMNS, Row, collect_rows, format_table
from pytest_fx.timing.paired import PairedTiming

ERRORS = Row("model", "fuse", nodes_before=9, nodes_after=5).with_errors(
    dtype="float32", float64_error=1.2e-14, error=3e-6, eager_error=2e-6
)
TIMES = Row("model", "fuse").with_timing(PairedTiming((0.2,) * 5, (0.1,) * 5, threads=1, iterations=1))


def report(*rows: Row, when: str = "call") -> SimpleNamespace:
    properties = [("fx", {"row": asdict(row), "timing": None, "machine": {}}) for row in rows]
    return SimpleNamespace(when=when, user_properties=[("other", 1), *properties])


def test_what_different_tests_found_out_about_one_program_is_one_row():
    (row,) = collect_rows([report(ERRORS), report(TIMES)])
    assert tuple(column.cell(row) for column in COLUMNS if not column.optional) == (
        "model",
        "fuse",
        "9 -> 5",
        "1.2e-14",
        "3.0e-06 (2.0e-06) float32",
        "200 ms",
        "100 ms",
        "2.000 (2.000 to 2.000), faster",
    )


def test_rows_of_other_programs_and_models_stay_apart():
    rows = collect_rows([report(ERRORS, Row("model", "capture", nodes_after=9)), report(Row("other", "fuse"))])
    assert [(row.model, row.program) for row in rows] == [("model", "fuse"), ("model", "capture"), ("other", "fuse")]


def test_reports_of_set_up_and_tear_down_carry_the_same_properties_and_are_left_out():
    assert collect_rows([report(ERRORS, when="teardown")]) == []


def test_what_no_test_found_out_is_a_dash_and_no_error_is_a_zero():
    assert [column.cell(Row("model", "capture")) for column in COLUMNS][2:] == ["-"] * 8
    exact = Row("model", "capture").with_errors(dtype="float32", float64_error=0.0, error=0.0, eager_error=0.0)
    assert [column.cell(exact) for column in COLUMNS][3:5] == ["0", "0 (0) float32"]


def test_a_noisy_timing_is_said_to_be_one_and_no_other():
    cell = COLUMNS[7].cell
    assert "noisy" not in cell(TIMES)
    assert cell(replace(TIMES, outliers=0.2)).endswith("faster; noisy: 20% outliers, pairs deviate by 0.0%")
    assert cell(replace(TIMES, noise=0.06)).endswith("faster; noisy: 0% outliers, pairs deviate by 6.0%")


def test_memory_and_the_time_of_the_host_have_columns_where_they_are_known():
    assert not [
        heading for heading in format_table([TIMES])[0].split("  ") if "memory" in heading or "after" in heading
    ]
    row = TIMES.with_peak_memory(eager=3 * 2**20, transformed=512)
    row = replace(row, host_seconds=0.001, eager_host_seconds=0.002)
    heading, cells = format_table([row])
    assert heading.endswith("launched after (eager's own)  peak memory (eager's own)")
    assert cells.endswith("1 ms (2 ms)                   512 B (3.0 MiB)")


def test_the_change_since_a_baseline_has_its_interval_and_its_verdict():
    before = Measurement("model", "fuse", 1, "float32", "cpu", 1, 2.0, 1.9, 2.1, "here")
    row = TIMES.with_change(Change(before, replace(before, speedup=1.0, low=0.95, high=1.05)))
    assert CHANGE.cell(row) == "+100.0% time (+86.3% to +114.7%), slower"
    assert CHANGE.cell(TIMES) == "not in the baseline"
    assert CHANGE.cell(ERRORS) == "-"


def test_columns_are_aligned():
    heading, first, second = format_table([ERRORS, Row("a model with a long name", "p")])
    assert heading.index("program") == first.index("fuse") == second.index("p", 20)


def test_the_summary_names_errors_times_and_verdict_of_a_pass(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:approximate_scaled", "--fx-rounds", "3")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*fx: largest errors against eager in float64, median times of a call*",
            "model *program *nodes *float64 error *error (eager's own) *eager *transformed *speed-up * *peak memory *",
            "mine:pair  capture *  5 *float32*",
            "mine:pair  approximate-scaled*  5 -> 5  *e-0? (*e-0?) float32  * ms  * ms *(* to *), * 32 B (32 B)",
        ]
    )


def test_a_pass_that_breaks_its_contract_is_in_the_table_with_its_errors(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", "contract")
    assert result.ret == 1
    result.stdout.re_match_lines([r"mine:pair +scaled +5 -> 5 +\d\.\de-0\d +\d\.\de-0\d \(\d\.\de-0\d\) float32"])


def test_models_come_in_the_order_of_the_command_line(pytester):
    result = pytester.runpytest("--fx-model", "two_heads", "--fx-model", "mlp", "-k", "test_capture_equals_eager")
    result.stdout.fnmatch_lines(["two_heads *capture*", "mlp *capture*"])


def test_captures_come_before_passes_whatever_ran_first(user):
    path = user.makepyfile(
        """
        import mine

        def test_pass(fx_equal):
            fx_equal(mine.approximate_scaled)

        def test_capture(fx_traced, fx_equal):
            fx_equal(fx_traced, label="the capture")
        """
    )
    result = user.runpytest("--fx-model", "mine:pair", path)
    result.stdout.fnmatch_lines(["mine:pair *the capture *", "mine:pair *approximate-scaled *"])


def test_a_run_without_rows_prints_no_table(pytester):
    path = pytester.makepyfile("def test_own(fx_model): pass")
    pytester.runpytest("--fx-model", "mlp", path).stdout.no_fnmatch_line("*fx: largest errors*")
