"""pytest_fx.records.journal: measurements are on disk at once, and stay there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from building import last_run

from pytest_fx.records.journal import KEPT_RUNS, Journal
from pytest_fx.records.records import read_records

TWO_ROWS_AND_A_STOP = """
import pathlib, time
import pytest

def test_capture(fx_traced, fx_equal):
    fx_equal(fx_traced, label="capture")

def test_interrupted(fx_traced, fx_timing):
    fx_timing(fx_traced, label="first")
    {stop}
    fx_timing(fx_traced, label="second")
"""
OPTIONS = ("--fx-model", "mlp", "--fx-rounds", "2")


def journals(path: Path) -> list[Path]:
    return sorted((path / ".pytest_fx" / "runs").iterdir())


def programs(records: list[dict]) -> list[str]:
    return [record["row"]["program"] for record in records]


def test_a_run_leaves_its_rows_with_their_tests_and_where_they_were_measured(pytester):
    path = pytester.makepyfile(test_it=TWO_ROWS_AND_A_STOP.format(stop=""))
    assert pytester.runpytest(*OPTIONS, path).ret == 0
    (journal,) = journals(pytester.path)
    records = read_records(journal)
    assert programs(records) == ["capture", "first", "second"]
    assert last_run(pytester.path) == {
        "journal": f"runs/{journal.name}",
        "verdicts": [
            {"model": "mlp", "program": "capture", "verdict": "right"},
            {"model": "mlp", "program": "first", "verdict": "not judged"},
            {"model": "mlp", "program": "second", "verdict": "not judged"},
        ],
        "records": records,
    }
    first, second, _ = records
    assert first["test"] == "test_it.py::test_capture[mlp]"
    assert first["timing"] is None
    assert first["row"]["error"] is not None
    assert second["timing"]["info"]["pass"] == "first"
    assert all(record["machine"]["versions"]["torch"] and record["time"] for record in records)


def test_rows_measured_before_an_interruption_are_kept_even_those_of_the_test_itself(pytester):
    path = pytester.makepyfile(TWO_ROWS_AND_A_STOP.format(stop="raise KeyboardInterrupt"))
    result = pytester.runpytest(*OPTIONS, "--benchmark-json=out.json", path, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert programs(last_run(pytester.path)["records"]) == ["capture", "first"]
    assert '"pass": "first"' in (pytester.path / "out.json").read_text()


@pytest.mark.thorough
def test_rows_measured_before_the_process_is_killed_are_kept(pytester):
    path = pytester.makepyfile(
        TWO_ROWS_AND_A_STOP.format(stop="pathlib.Path('here').touch(); time.sleep(300)"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *OPTIONS, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (pytester.path / "here").exists():
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (journal,) = journals(pytester.path)
    assert programs(read_records(journal)) == ["capture", "first"]
    assert not (pytester.path / ".pytest_fx" / "last_run.json").exists()
    result = pytester.runpytest(*OPTIONS, "--fx-baseline", journal, "-k", "nothing", path)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED  # the journal can be compared with


def test_a_run_that_measures_nothing_leaves_the_last_record_alone(pytester):
    pytester.makepyfile(test_rows="def test_capture(fx_traced, fx_equal): fx_equal(fx_traced, label='capture')")
    pytester.makepyfile(test_none="def test_none(fx_model): pass")
    pytester.runpytest(*OPTIONS, "test_rows.py")
    before = last_run(pytester.path)
    pytester.runpytest(*OPTIONS, "test_none.py")
    assert last_run(pytester.path) == before
    assert len(journals(pytester.path)) == 1


def test_a_run_without_the_plugins_tests_writes_nothing(pytester):
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest()
    assert not (pytester.path / ".pytest_fx").exists()


def test_only_the_last_journals_are_kept(tmp_path):
    for number in range(KEPT_RUNS + 3):
        journal = Journal(tmp_path)
        journal.append({"number": number})
        os.utime(journal.path, (0, 0))
    numbers = [record["number"] for journal in journals(tmp_path) for record in read_records(journal)]
    assert numbers == list(range(3, KEPT_RUNS + 3))


def test_the_journal_of_a_run_that_goes_on_is_kept_whatever_runs_beside_it(tmp_path):
    slow = Journal(tmp_path)
    slow.append({"number": 1})
    for _ in range(KEPT_RUNS + 3):
        Journal(tmp_path).append({})
    slow.append({"number": 2})
    assert [record["number"] for record in read_records(slow.path)] == [1, 2]


def test_the_folder_hides_itself_from_git(tmp_path):
    Journal(tmp_path).append({})
    assert (tmp_path / ".pytest_fx" / ".gitignore").read_text().splitlines()[-1] == "*"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    status = subprocess.run(["git", "-C", tmp_path, "status", "--short"], check=True, capture_output=True, text=True)
    assert status.stdout == ""


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written_stops_no_test_and_is_reported(pytester):
    (pytester.path / ".pytest_fx").write_text("a file of somebody else's")
    path = pytester.makepyfile(TWO_ROWS_AND_A_STOP.format(stop=""))
    result = pytester.runpytest(*OPTIONS, path)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("what was measured is not on disk: *.pytest_fx*")
