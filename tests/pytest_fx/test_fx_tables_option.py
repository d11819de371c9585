"""--fx-tables: the evaluation is measured row by row, and written from the records."""

import errno
import json
import os
from importlib.util import find_spec

import pytest
import torch

import pytest_fx.suites.table_suite  # before the inner runs, which drop their first imports
from pytest_fx.tables import Scale, get_table, list_tables, table, tables_run

if find_spec("matplotlib"):
    import pytest_fx.tables.figure  # noqa: F401

SMALL = ("--fx-size", "small", "--fx-rounds", "2")
ONE_ROW = ("--fx-tables=ir-complexity", *SMALL, "-k", "resnet_tiny and torch.fx and not leaf")

USERS_TABLE = """
from pytest_fx.tables import Chart, Claim, Column, Row, Series, Table, register_table

def measure(value):
    {measure}
    return {{"petals": value}}

register_table(Table(
    name="petals",
    title="Petals",
    section="section 7",
    protocol="Counted.",
    claims=(Claim("A daisy has 34 petals.", "34", {{"daisy": "{{petals}}"}}),),
    rows=lambda scale: [
        Row("daisy", lambda: measure(34), {{"rounds": scale.rounds}}, timed={timed}),
        Row("rose", lambda: measure(5)),
    ],
    columns=(Column("petals", "{{petals}}"), Column("the paper", "{{paper_petals}}")),
    chart=Chart("Petals", "petals", (Series("here", "petals", "ours"),)),
    paper={{"daisy": {{"petals": 34}}}},
))
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest inside the test, each time without the tables that earlier runs registered, as if without a GPU."""
    tables = table._tables
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(*options, **how):
        monkeypatch.setattr(table, "_tables", tables.copy())
        return pytester.runpytest_inprocess(*options, **how)

    return run


@pytest.fixture
def petals(pytester):
    """A user's table, and the results folder of the run."""

    def write(measure="", timed=False):
        pytester.makeconftest(USERS_TABLE.format(measure=measure, timed=timed))
        return pytester.path / "results"

    return write


def records(results, table="petals"):
    lines = (results / "raw" / f"{table}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_table_is_measured_into_records_and_documents(pytester, run):
    result = run(*ONE_ROW, "-v")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["fx::test_table?ir-complexity:resnet_tiny-torch.fx? PASSED*", "written: *README.md*"])
    results = pytester.path / "results"
    (record,) = records(results, "ir-complexity")
    assert record["row"] == "resnet_tiny, torch.fx" and record["values"] == {"nodes": 67, "lines": 68}
    assert record["versions"]["torch"] == torch.__version__ and record["machine"]
    assert "| resnet_tiny, torch.fx | 67 | 68 | - |" in (results / "ir-complexity.md").read_text()
    assert "| resnet_tiny, fx | not measured yet | - | - |" in (results / "ir-complexity.md").read_text()
    assert ',"resnet_tiny, torch.fx",,67,68' in (results / "ir-complexity.csv").read_text()
    assert "[IR complexity](ir-complexity.md)" in (results / "README.md").read_text()
    pytest.importorskip("matplotlib")
    (figure,) = results.glob("ir-complexity-*.svg")
    assert f"]({figure.name})" in (results / "ir-complexity.md").read_text()


def test_a_measured_row_is_not_measured_again(run, petals):
    results = petals()
    run("--fx-tables=petals").assert_outcomes(passed=2)
    again = run("--fx-tables=petals", "-rs")
    again.assert_outcomes(skipped=2)
    again.stdout.fnmatch_lines("SKIPPED*it was measured at 20*, and nothing that it depends on has changed since")
    assert len(records(results)) == 2


def test_other_settings_are_measured_again(run, petals):
    petals()
    run("--fx-tables=petals").assert_outcomes(passed=2)
    run("--fx-tables=petals", "--fx-rounds", "3").assert_outcomes(passed=1, skipped=1)


def test_everything_can_be_measured_afresh_and_old_records_stay(run, petals):
    results = petals()
    run("--fx-tables=petals").assert_outcomes(passed=2)
    run("--fx-tables=petals", "--fx-tables-afresh").assert_outcomes(passed=2)
    assert len(records(results)) == 4


def test_an_interrupted_run_keeps_its_rows_and_resumes(run, petals):
    results = petals(measure="if value == 5: raise KeyboardInterrupt")
    result = run("--fx-tables=petals", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [record["row"] for record in records(results)] == ["daisy"]
    assert "| daisy | 34 | 34 |\n| rose | not measured yet | - |" in (results / "petals.md").read_text()
    petals()
    run("--fx-tables=petals").assert_outcomes(passed=1, skipped=1)
    assert "| rose | 5 | - |" in (results / "petals.md").read_text()


def test_k_selects_a_row_by_its_name_with_hyphens(run):
    every = run("--fx-tables=fusion", "--collect-only", "-q", "-k", "resnet50-CPU-1-thread-batch-1")
    every.stdout.fnmatch_lines(
        ["fx::test_table?fusion:resnet50-CPU-1-thread-batch-1?", "fx::test_table?fusion:*-batch-10?"]
    )
    result = run("--fx-tables=fusion", "--collect-only", "-q", "-k", "resnet50-CPU-1-thread-batch-1]")
    result.stdout.fnmatch_lines(["fx::test_table?fusion:resnet50-CPU-1-thread-batch-1?", "1/5 tests collected*"])


def test_keywords_of_rows_are_unique_in_their_table():
    for name in list_tables():
        for size in ("full", "small"):
            keywords = [row.keyword for row in get_table(name).rows(Scale(size))]
            assert len(set(keywords)) == len(keywords)


def test_a_row_that_fails_fails_its_test_and_has_no_record(run, petals):
    results = petals(measure="assert value == 5")
    run("--fx-tables=petals").assert_outcomes(passed=1, failed=1)
    assert [record["row"] for record in records(results)] == ["rose"]


def test_a_row_that_cannot_run_here_is_recorded_with_the_reason_once(run, petals):
    results = petals(measure="from pytest_fx.tables import NotRun; raise NotRun('not run: it is winter')")
    for _ in range(2):
        result = run("--fx-tables=petals", "-rs", "-k", "rose")
        result.assert_outcomes(skipped=1, deselected=1)
        result.stdout.fnmatch_lines("SKIPPED*not run: it is winter")
    (record,) = records(results)
    assert record["reason"] == "not run: it is winter" and record["values"] is None
    assert "| rose | not run: it is winter | - |" in (results / "petals.md").read_text()


def test_without_a_gpu_its_row_says_so(pytester, run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run("--fx-tables=fusion", *SMALL, "-k", "GPU", "-rs")
    result.assert_outcomes(skipped=1, deselected=4)
    result.stdout.fnmatch_lines("SKIPPED*not run: no GPU")
    assert "| resnet_tiny, GPU, batch 4 | not run: no GPU |" in (pytester.path / "results" / "fusion.md").read_text()


def test_no_times_are_taken_where_none_are_wanted(run, petals):
    petals(timed=True)
    result = run("--fx-tables=petals", "--fx-no-timing", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines("SKIPPED*the run takes no times (--fx-no-timing)")


def test_an_unknown_table_is_refused_with_the_nearest_names(pytester, run):
    result = run("--fx-tables=ir-complexity,fussion")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no table named 'fussion'", "*did you mean 'fusion'?"])
    assert not (pytester.path / "results").exists()


def test_a_run_that_measures_nothing_leaves_no_folder(pytester, run):
    result = run(*ONE_ROW, "no_such_file.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not (pytester.path / "results").exists()


def test_a_folder_that_cannot_be_written_to_is_found_out_before_anything_is_measured(pytester, run):
    (pytester.path / "results").write_text("a file is in the way")
    result = run(*ONE_ROW)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*results cannot be written to *results: *", "*try*--rootdir*"])


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "with a worker"])
def test_a_full_disk_ends_the_run_and_names_the_missing_files(run, petals, monkeypatch, workers):
    results = petals()
    run("--fx-tables=petals", "-k", "daisy").assert_outcomes(passed=1)
    fsync = os.fsync

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    result = run("--fx-tables=petals", "--fx-tables-afresh", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["this record is not on disk; append it to *petals.jsonl:", '{"measured": *"row": "daisy"*"petals": 34*']
    )
    result.stdout.fnmatch_lines("*measurements cannot be written to *petals.jsonl: No space left on device; make room*")
    result.stdout.no_fnmatch_line("*rose*")
    assert "Traceback" not in str(result.stdout)
    assert "34" in (results / "petals.md").read_text()


def test_damaged_lines_of_a_record_are_left_out_with_a_note(run, petals):
    results = petals()
    run("--fx-tables=petals").assert_outcomes(passed=2)
    with (results / "raw" / "petals.jsonl").open("ab") as file:
        file.write(b'{"row": "daisy"}\n{"row": "da\xff\n')
    result = run("--fx-tables=petals")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines("left out: 2 lines of *petals.jsonl that are not records of a row")
    assert "| daisy | 34 | 34 |" in (results / "petals.md").read_text()


def test_without_matplotlib_the_documents_are_written_and_it_is_reported(run, petals, monkeypatch):
    results = petals()
    monkeypatch.setattr(tables_run, "find_spec", lambda name: None)
    result = run("--fx-tables=petals")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("no figures are drawn: matplotlib is not installed (pip install 'pytest-fx*tables*')")
    assert "| daisy | 34 | 34 |" in (results / "petals.md").read_text()
    assert "![" not in (results / "petals.md").read_text() and not list(results.glob("*.svg"))


def test_nothing_is_written_where_tests_are_only_listed(run, petals):
    results = petals()
    result = run("--fx-tables=petals", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["fx::test_table?petals:daisy?", "fx::test_table?petals:rose?"])
    assert not (results / "README.md").exists()


def test_the_suite_of_a_model_runs_in_the_same_run(run, petals):
    petals()
    result = run("--fx-tables=petals", "--fx-model", "mlp", "-k", "petals or well_formed", "-v")
    result.assert_outcomes(passed=3, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(
        ["fx::test_capture_is_well_formed?mlp? PASSED*", "fx::test_table?petals:daisy? PASSED*"]
    )


def test_without_names_all_tables_are_measured(run, petals):
    petals()
    result = run("--fx-tables", "--collect-only", "-q")
    for name in ("fusion", "ir-complexity", "petals", "transform-times"):
        result.stdout.fnmatch_lines(f"fx::test_table?{name}:*")


@pytest.mark.thorough
def test_workers_of_xdist_measure_and_everything_is_written_once(pytester, petals):
    pytest.importorskip("xdist")
    results = petals(timed=True)
    result = pytester.runpytest_subprocess("--fx-tables=petals", "-n", "2")
    result.assert_outcomes(passed=2)
    assert result.stdout.str().count("written: ") == 1
    assert sorted(record["row"] for record in records(results)) == ["daisy", "rose"]
    assert "| daisy | 34 | 34 |\n| rose | 5 | - |" in (results / "petals.md").read_text()


def test_the_options_are_in_the_help(run):
    result = run("--help")
    result.stdout.fnmatch_lines(["*--fx-tables=?NAME*", "*--fx-tables-afresh*"])


def test_a_run_without_the_option_measures_nothing(pytester, run, petals):
    results = petals()
    pytester.makepyfile("def test_nothing(): pass")
    run().assert_outcomes(passed=1)
    assert not results.exists()
