"""pytest_fx.report.summary: the table at the end of a run."""

import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest

import pytest_fx.report as report_folder
from pytest_fx.records.baseline import Change, Measurement
from pytest_fx.report.columns import CHANGE, COLUMNS
from pytest_fx.report.rows import SummaryRow, collect_rows
from pytest_fx.report.summary import format_table, of_a_loaded_machine
from pytest_fx.timing.paired import PairedTiming

ERRORS = SummaryRow(
    "model", "fuse", nodes_before=9, nodes_after=5, dtype="float32", float64_error=1.2e-14, error=3e-6, eager_error=2e-6
)
TIMES = SummaryRow("model", "fuse").with_timing(PairedTiming((0.2,) * 5, (0.1,) * 5, threads=1, iterations=1))


def report(*rows: SummaryRow, when: str = "call", failed: bool = False, timing: object = None) -> SimpleNamespace:
    properties = [("fx", {"row": asdict(row), "timing": timing, "machine": {}}) for row in rows]
    return SimpleNamespace(when=when, failed=failed, user_properties=[("other", 1), *properties])


def cell(heading: str, row: SummaryRow) -> str:
    (column,) = (column for column in COLUMNS if column.heading.startswith(heading))
    return column.cell(row)


def test_results_of_several_tests_of_one_program_are_one_row():
    (row,) = collect_rows([report(ERRORS), report(TIMES)])
    assert tuple(column.cell(row) for column in COLUMNS if not column.optional) == (
        "model",
        "fuse",
        "not judged",
        "9 -> 5",
        "1.2e-14",
        "3.0e-06 (2.0e-06) float32",
        "200 ms",
        "100 ms",
    )


def test_rows_of_other_programs_and_models_stay_apart():
    rows = collect_rows(
        [report(ERRORS, SummaryRow("model", "capture", nodes_after=9)), report(SummaryRow("other", "fuse"))]
    )
    assert [(row.model, row.program) for row in rows] == [("model", "fuse"), ("model", "capture"), ("other", "fuse")]


def test_reports_of_set_up_and_tear_down_carry_the_same_properties_and_are_left_out():
    assert collect_rows([report(ERRORS, when="teardown")]) == []


def test_an_unknown_value_is_a_dash_and_an_error_of_zero_is_a_zero():
    assert [column.cell(SummaryRow("model", "capture")) for column in COLUMNS][3:] == ["-"] * (len(COLUMNS) - 3)
    exact = SummaryRow("model", "capture", dtype="float32", float64_error=0.0, error=0.0, eager_error=0.0)
    assert (cell("float64 error", exact), cell("error", exact)) == ("0", "0 (0) float32")


def full_row() -> SummaryRow:
    """A row with every part, each of a permitted type."""
    samples = {str: "guided", bool: False, int: 7, float: 0.5}
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(SummaryRow).items()}
    parts = {name: next((samples[kind] for kind in kinds if kind in samples), ()) for name, kinds in hints.items()}
    return SummaryRow(**{**parts, "outcome": None})


def test_a_row_that_has_everything_shows_something_in_every_column():
    cells = {column.heading: column.cell(full_row()) for column in (*COLUMNS, CHANGE)}
    assert [heading for heading, cell in cells.items() if cell == "-"] == []


ONLY_RECORDED = {
    "detects_largest",
    "detects_median",
    "baseline_speedup",
    "reference_metric",
    "max_drop",
    "changed_samples",
}
"""Parts of a row that records keep for whoever reads them, and nothing shows."""


def test_every_part_of_a_row_is_shown_or_listed_as_only_recorded():
    files = [path for path in Path(report_folder.__path__[0]).rglob("*") if path.suffix in (".py", ".js")]
    read = {name for path in files for name in re.findall(r"\brow\.(\w+)", path.read_text("utf-8"))}
    assert {field.name for field in fields(SummaryRow)} - read == ONLY_RECORDED


def test_every_part_of_a_row_is_set_somewhere():
    files = Path(report_folder.__path__[0]).parent.rglob("*.py")
    names = {name for path in files for name in re.findall(r"\b(\w+)=(?!=)", path.read_text("utf-8"))}
    assert {field.name for field in fields(SummaryRow)} - names == set()


def timed(*ratios: float) -> SummaryRow:
    return SummaryRow("model", "fuse").with_timing(PairedTiming(ratios, (1.0,) * len(ratios), threads=1, iterations=1))


def test_times_too_noisy_to_tell_show_no_ratio_but_how_noisy_they_are():
    assert cell("speed-up", timed(0.99, 1.0, 1.01, 1.0, 1.0)) == "1.000 (0.990 to 1.010), no difference shown"
    assert cell("speed-up", timed(0.5, 2.0, 1.0, 0.7, 1.4)) == "too noisy to tell: 0% outliers, pairs deviate by 40.0%"
    assert cell("speed-up", timed(2.0, 4.0, 3.0, 2.5, 3.5)) == (
        "faster, too noisy to tell by how much: 0% outliers, pairs deviate by 16.7%"
    )


def test_times_on_contents_that_repeat_say_so():
    timing = PairedTiming((0.2,) * 5, (0.1,) * 5, threads=1, iterations=1, contents_repeat=True)
    (row,) = collect_rows([report(SummaryRow("model", "fuse").with_timing(timing))])
    assert "2.000 (2.000 to 2.000), faster; contents of inputs repeat" in format_table([row])[1]


def test_a_loaded_machine_is_reported_once_with_how_much_of_a_processor_there_was():
    timing = PairedTiming((0.2,) * 5, (0.1,) * 5, threads=1, iterations=1, processors=0.62)
    loaded = SummaryRow("model", "fuse").with_timing(timing)
    assert "loaded" not in format_table([loaded])[1]
    assert list(of_a_loaded_machine([TIMES])) == []
    (line,) = of_a_loaded_machine([TIMES, loaded])
    assert line.startswith("loaded machine: 1 of 2 timing(s) had 62% of a processor, and wider intervals for that")
    (line,) = of_a_loaded_machine([replace(loaded, processors=0.5), loaded])
    assert "2 of 2 timing(s) had 50% to 62% of a processor" in line


def test_a_change_is_no_ratio_where_the_times_of_either_run_are_too_noisy():
    before = Measurement("model", "fuse", 1, "float32", "cpu", 1, 1.0, 0.99, 1.01, "here")
    noisy = Change(replace(before, low=0.7, high=1.4), before)
    assert CHANGE.cell(timed(1.0, 1.0).with_change(noisy)) == "too noisy to tell (-30.0% to +40.0%)"
    change = Change(before, replace(before, speedup=0.5, low=0.49, high=0.51))
    words = CHANGE.cell(timed(0.3, 0.5, 0.7, 0.4, 0.6).with_change(change))
    assert re.fullmatch(r"slower, too noisy to tell by how much \(\+9\d\.\d% to \+10\d\.\d%\)", words)


def test_a_pass_that_changes_nothing_says_so():
    row = SummaryRow("model", "fuse", nodes_before=9, nodes_after=9, edits=0, changed=False)
    assert (cell("verdict", row), cell("nodes", row)) == ("changes nothing", "9")
    assert cell("nodes", ERRORS.merged(replace(row, nodes_after=8, changed=True))) == "9 -> 8"


def test_memory_and_the_time_of_the_host_have_columns_where_they_are_known():
    assert not [
        heading for heading in format_table([TIMES])[0].split("  ") if "memory" in heading or "after" in heading
    ]
    host = {"host_seconds": 0.001, "eager_host_seconds": 0.002}
    row = replace(TIMES, eager_peak_memory=3 * 2**20, peak_memory=512, **host)
    heading, cells = format_table([row])
    assert heading.endswith("launched after (eager's)  peak memory (eager's)")
    assert cells.endswith("1 ms (2 ms)               512 B (3.0 MiB)")


def test_the_memory_kept_for_the_backward_pass_has_a_column_where_it_is_known():
    heading, cells = format_table([SummaryRow("model", "recompute", kept_bytes_before=2440, kept_bytes=184)])
    assert "kept for backward" in heading and "kept" not in format_table([TIMES])[0]
    assert "2,440 -> 184 B" in cells


def test_the_change_since_a_baseline_has_its_interval_and_its_verdict():
    before = Measurement("model", "fuse", 1, "float32", "cpu", 1, 2.0, 1.9, 2.1, "here")
    row = TIMES.with_change(Change(before, replace(before, speedup=1.0, low=0.95, high=1.05)))
    assert CHANGE.cell(row) == "+100.0% time (+86.3% to +114.7%), slower"
    assert CHANGE.cell(TIMES) == "not in the baseline"
    assert CHANGE.cell(ERRORS) == "-"


def test_columns_are_aligned():
    heading, first, second = format_table([ERRORS, SummaryRow("a model with a long name", "p")])
    assert heading.index("program") == first.index("fuse") == second.index("p", 20)


def test_the_summary_names_errors_times_and_verdict_of_a_pass(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:approximate_scaled", "--fx-rounds", "3", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*fx: verdicts, largest errors against eager in float64, median times of a call*",
            "model *program *verdict *nodes *float64 error *error (by rounding) *eager *transformed *speed-up *memory*",
            "mine:pair  capture *right *5 *float32*",
            "mine:pair  approximate-scaled *right *5 -> 5  *e-0? (*e-0?) float32  * ms  * ms  * 32 B (32 B)",
        ]
    )


def test_a_pass_that_breaks_its_contract_is_in_the_table_with_its_errors(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", "contract", "-v")
    assert result.ret == 1
    result.stdout.re_match_lines(
        [r"!  mine:pair +scaled +wrong: contract +5 -> 5 +\d\.\de-0\d +\d\.\de-0\d \(\d\.\de-0\d\) float32, \S+ all"]
    )


def test_models_come_in_the_order_of_the_command_line(pytester):
    result = pytester.runpytest("--fx-model", "two_heads", "--fx-model", "mlp", "-k", "test_capture_equals_eager")
    result.stdout.fnmatch_lines(["two_heads *capture*", "mlp *capture*"])


def test_captures_come_before_passes_in_any_order_of_runs(user):
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
    pytester.runpytest("--fx-model", "mlp", path).stdout.no_fnmatch_line("*fx: verdicts*")


def test_passes_with_nothing_to_change_are_one_line_unless_all_rows_are_requested(pytester):
    options = (
        "--fx-model",
        "mlp",
        "--fx-pass",
        "fuse-conv-bn",
        "--fx-pass",
        "split",
        "--fx-no-timing",
        "-k",
        "contract",
    )
    result = pytester.runpytest(*options)
    result.stdout.fnmatch_lines("mlp: 2 passes found nothing to change: fuse-conv-bn, split")
    result.stdout.no_fnmatch_line("*changes nothing*")
    pytester.runpytest(*options, "-v").stdout.fnmatch_lines(["mlp *fuse-conv-bn *changes nothing*", "mlp *split *"])


def test_wrong_programs_are_named_below_the_table_with_the_law_that_they_break(user):
    options = (
        "--fx-model",
        "mine:pair",
        "--fx-pass",
        "mine:scaled",
        "--fx-pass",
        "mine:lost",
        "-k",
        "leaf or contract",
    )
    result = user.runpytest(*options, "--fx-no-timing")
    result.stdout.fnmatch_lines(["! *mine:pair *scaled *wrong*", "fx: 3 of * program(s) wrong: lost of mine:pair (*"])
    assert "scaled of mine:pair (contract)" in re.sub(r"\s+", " ", str(result.stdout))


@pytest.mark.parametrize("colour", ["yes", "no"])
def test_the_table_has_colours_where_the_terminal_has_them(user, colour):
    options = ("--fx-model", "mine:pair", "--fx-no-timing", "-k", "test_capture_equals", f"--color={colour}")
    written = str(user.runpytest(*options).stdout)
    assert ("\x1b[32mright\x1b[0m" in written) == (colour == "yes")


def test_no_color_is_obeyed(user, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    written = str(user.runpytest("--fx-model", "mine:pair", "--fx-no-timing", "-k", "test_capture_equals").stdout)
    assert "right" in written and "\x1b[" not in written


def test_an_interrupted_run_reports_its_finished_tests(pytester):
    path = pytester.makepyfile(
        """
        def test_one(fx_traced, fx_equal):
            fx_equal(fx_traced, label="capture")

        def test_two(fx_model):
            raise KeyboardInterrupt

        def test_three(fx_model):
            pass
        """
    )
    result = pytester.runpytest("--fx-model", "mlp", path, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    text = re.sub(r"\s+", " ", str(result.stdout))
    assert "fx: interrupted after 1 of 3 tests; what they measured is above, and in .pytest_fx/last_run.json" in text


def test_a_collection_error_is_not_reported_as_an_interruption(pytester):
    result = pytester.runpytest("--fx-model", "mlp", pytester.makepyfile("import nowhere"))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("fx: interrupted*")
