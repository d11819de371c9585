"""pytest_fx.records.running: the test in which a process has ended is named by the next run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_fx.records.running import RUNNING, Running, unfinished

EXITS = """
import os

def exits(program): os._exit(0)

def test_good(fx_model): pass

def test_exits(fx_equal): fx_equal(exits)
"""
NAMED = "*ended during test_it.py::test_exits?mlp?: exits on mlp"


@pytest.mark.thorough
def test_the_next_run_names_the_test_and_the_pass_that_ended_the_last_one_and_says_so_once(pytester):
    path = pytester.makepyfile(test_it=EXITS)
    assert pytester.runpytest_subprocess("--fx-model", "mlp", path).ret == 0  # the status reports no failure
    result = pytester.runpytest("--fx-model", "mlp", path, "-k", "good")
    result.stdout.fnmatch_lines([f"fx: the last run {NAMED}", "  try    run with --fx-isolate, *"])
    again = pytester.runpytest("--fx-model", "mlp", path, "-k", "good")
    again.stdout.no_fnmatch_line("*the last run*")
    assert not list((pytester.path / ".pytest_fx" / RUNNING).iterdir())


@pytest.mark.thorough
def test_beside_xdist_the_report_on_the_lost_worker_says_it(pytester):
    path = pytester.makepyfile(test_it=EXITS)
    result = pytester.runpytest("--fx-model", "mlp", "-n", "2", path)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["worker 'gw?' crashed while running *", "  value  exits on mlp", "  try    run with *"]
    )
    again = pytester.runpytest("--fx-model", "mlp", path, "-k", "good")
    again.stdout.no_fnmatch_line("*the last run*")


def test_tests_of_processes_that_live_are_not_taken_for_unfinished(tmp_path):
    running = Running(tmp_path)
    running.begin("test_it", "a pass on a model")
    code = f"from pytest_fx.records.running import Path, unfinished\nprint(*unfinished(Path({str(tmp_path)!r})))"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == ""
    running.finish()


def test_between_tests_there_is_nothing_to_tell(tmp_path):
    running = Running(tmp_path)
    running.begin("test_it", "a pass on a model")
    running.note(what="another pass")
    running.end()
    (path,) = (tmp_path / ".pytest_fx" / RUNNING).iterdir()
    assert path.read_text() == ""
    running.finish()
    assert list(unfinished(tmp_path)) == []


def test_a_foreign_file_under_the_same_number_is_not_written(tmp_path):
    running = Running(tmp_path)
    running.begin("test", "what")
    open_files = {int(file.name): file.resolve() for file in Path("/proc/self/fd").iterdir()}
    # another run of this process may have a file of its own
    (number,) = [number for number, file in open_files.items() if tmp_path.resolve() in file.parents]
    other = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.write(other, b"theirs")
    os.dup2(other, number)
    running.note(what="more")
    running.end()
    os.close(other)
    os.close(number)
    assert (tmp_path / "mine").read_bytes() == b"theirs"


def test_where_files_cannot_be_locked_none_stays_open(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.lockf", refuse)
    running = Running(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        running.begin(f"test {number}", "what")
        running.end()
    assert len(os.listdir("/proc/self/fd")) == before


def test_asking_for_one_unfinished_test_keeps_the_others(tmp_path):
    folder = tmp_path / ".pytest_fx" / RUNNING
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps({"test": name, "what": f"a pass on {name}"}))
    assert [entry["what"] for entry in unfinished(tmp_path, "two")] == ["a pass on two"]
    assert [entry["what"] for entry in unfinished(tmp_path)] == ["a pass on one"]
