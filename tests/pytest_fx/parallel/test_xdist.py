"""The plugin beside pytest-xdist: on several workers, in several folders, with workers that die."""

import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from building import last_run
from pytest_benchmark.session import BenchmarkSession

from pytest_fx.records.records import read_records

pytest.importorskip("xdist")

LOGGED_TESTS = """
import json, os, signal, time
import pytest

@pytest.fixture(autouse=True)
def logged(request):
    write("begin", request)
    yield
    write("end", request)

def write(what, request):
    line = json.dumps([what, os.environ["PYTEST_XDIST_WORKER"], request.node.name]) + chr(10)
    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)

@pytest.mark.parametrize("number", range(4))
def test_timing(fx_traced, fx_timing, number):
    fx_timing(fx_traced, label=f"timing {{number}}")

@pytest.mark.parametrize("number", range(8))
def test_check(fx_traced, fx_equal, number):
    time.sleep(0.1)
    fx_equal(fx_traced, label=f"check {{number}}")
"""
OPTIONS = ("--fx-model", "mine:pair", "--fx-rounds", "3")


@pytest.fixture
def logged(user):
    """A file of tests that write when they begin and end, the timings first."""
    return user.makepyfile(test_logged=LOGGED_TESTS.format(log=str(user.path / "log")))


def events(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (path / "log").read_text().splitlines()]


def assert_timings_ran_alone(path: Path) -> None:
    running: set[str] = set()
    for what, _, test in events(path):
        if what == "begin":
            assert not running or not any("timing" in name for name in (*running, test)), (test, running)
            running.add(test)
        else:
            running.remove(test)


def test_checks_run_side_by_side_and_timings_alone_on_one_worker_and_all_is_written_once(user, logged):
    result = user.runpytest_subprocess(*OPTIONS, "-n", "2", "--benchmark-json=out.json", logged)
    result.assert_outcomes(passed=12)
    if hasattr(BenchmarkSession, "note_xdist_benchmark"):  # before 5.3, it warns in any run
        assert "disabled" not in result.stderr.str()
    result.stdout.fnmatch_lines("fx: *; timings on one worker, never beside other work on its machine")
    assert_timings_ran_alone(user.path)
    workers = {kind: {worker for _, worker, test in events(user.path) if kind in test} for kind in ("timing", "check")}
    assert len(workers["timing"]) == 1
    assert len(workers["check"]) == 2

    programs = [f"{kind} {number}" for kind, count in (("timing", 4), ("check", 8)) for number in range(count)]
    assert sorted(record["row"]["program"] for record in last_run(user.path)["records"]) == sorted(programs)
    assert {record["worker"] for record in last_run(user.path)["records"]} == {"gw0", "gw1"}
    assert len(list((user.path / ".pytest_fx" / "runs").iterdir())) == 1
    benchmarks = json.loads((user.path / "out.json").read_text())["benchmarks"]
    assert len(benchmarks) == len({benchmark["fullname"] for benchmark in benchmarks}) == 8
    assert {benchmark["stats"]["rounds"] for benchmark in benchmarks} == {3}
    for program in programs:
        result.stdout.fnmatch_lines(f"mine:pair *{program} *")


@pytest.mark.thorough
def test_timings_run_alone_however_tests_are_distributed(user, logged):
    result = user.runpytest_subprocess(*OPTIONS, "-n", "2", "--dist", "worksteal", logged)
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines("fx: *; timings never beside other work *(--dist worksteal spreads them over workers)")
    assert_timings_ran_alone(user.path)


@pytest.mark.thorough
def test_a_worker_that_dies_costs_only_its_test(user):
    user.makepyfile(
        fatal="""
        import os, signal
        import torch
        from torch import nn

        class Fatal(nn.Module):
            def forward(self, x):
                os.kill(os.getpid(), signal.SIGKILL)

        def fatal():
            return Fatal(), torch.ones(2)
        """
    )
    path = user.makepyfile(
        """
        import pytest

        def test_first(fx_traced, fx_equal):
            fx_equal(fx_traced, label="first")

        @pytest.mark.fx(model=["fatal:fatal"])
        def test_fatal(fx_model):
            fx_model.fresh()(1)

        def test_timing(fx_traced, fx_timing):
            fx_timing(fx_traced, label="timing")

        @pytest.mark.fx(model=["fatal:fatal"])
        def test_fatal_timing(fx_model, fx_timing):
            fx_timing(fx_model.fresh())

        def test_timing_after_it(fx_traced, fx_timing):
            fx_timing(fx_traced, label="timing after it")
        """
    )
    result = user.runpytest_subprocess(*OPTIONS, "-n", "1", path)
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["*crashed while running*test_fatal*", "*crashed while running*test_fatal_timing*"])
    measured = [record["row"]["program"] for record in last_run(user.path)["records"]]
    assert measured == ["first", "timing", "timing after it"]


@pytest.mark.thorough
def test_workers_in_other_folders_have_their_own_models_and_one_record(user, logged):
    for folder in ("a", "b"):
        user.mkdir(folder)
        for file in ("mine.py", logged.name):
            shutil.copy(user.path / file, user.path / folder)
        (user.path / folder / "pytest.ini").write_text("[pytest]\n")
    logged.unlink()
    user.makeini("[pytest]")
    (user.path / "main.json").write_text(json.dumps({"timing": {"info": a_measurement("timing 1")}}))
    places = ("--dist", "load", "--tx", "popen//chdir=a", "--tx", "popen//chdir=b")
    limit = ("--fx-baseline=main.json", "--fx-fail-slower", "5%")
    result = user.runpytest_subprocess(*OPTIONS, *limit, *places, "test_logged.py")
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines("E *TimingRegression: timing 1 on mine:pair takes * longer, relative to eager, than *")
    assert_timings_ran_alone(user.path)
    assert len(last_run(user.path)["records"]) == 12
    assert not (user.path / "a" / ".pytest_fx").exists()
    assert not (user.path / "b" / ".pytest_fx").exists()
    result.stdout.fnmatch_lines("compared with main.json: 1 of 4 timing(s) are in it")


def an_interpreter(folder: Path, command: str) -> Path:
    """A program in a folder of its own that runs this Python, as ``command`` says."""
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return program


@pytest.mark.thorough
def test_workers_are_other_interpreters_in_folders_of_their_own(user, logged):
    programs = [an_interpreter(user.path / name, f'exec {sys.executable} "$@"') for name in ("one", "two")]
    places = [word for program in programs for word in ("--tx", f"popen//python={program}")]
    result = user.runpytest_subprocess(*OPTIONS, "--dist", "load", *places, logged)
    result.assert_outcomes(passed=12)
    assert_timings_ran_alone(user.path)
    assert {record["worker"] for record in last_run(user.path)["records"]} == {"gw0", "gw1"}
    assert {record["machine"]["host"] for record in last_run(user.path)["records"]} == {platform.node()}


@pytest.mark.thorough
def test_each_record_names_the_host_of_the_worker_that_measured_it(user, logged):
    """A namespace of names is as much of another machine as there is here."""
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", sys.executable, "-c", "pass"]
    if shutil.which("unshare") is None or subprocess.run(renamed, check=False, capture_output=True).returncode:
        pytest.skip("processes may not have a host name of their own here")
    command = f'exec unshare --uts sh -c \'hostname elsewhere && exec {sys.executable} "$@"\' sh "$@"'
    program = an_interpreter(user.path / "elsewhere", command)
    places = ("--dist", "load", "--tx", f"popen//python={program}", "--benchmark-json=out.json")
    result = user.runpytest_subprocess(*OPTIONS, *places, logged)
    result.assert_outcomes(passed=12)
    assert {record["machine"]["host"] for record in last_run(user.path)["records"]} == {"elsewhere"}
    benchmarks = json.loads((user.path / "out.json").read_text())["benchmarks"]
    assert {benchmark["extra_info"]["host"] for benchmark in benchmarks} == {"elsewhere"}
    here = user.runpytest_subprocess(*OPTIONS, "-n", "1", "--fx-baseline=out.json", logged, "-k", "timing")
    here.stdout.fnmatch_lines("compared with out.json: 0 of 4 timing(s) are in it; 4 of another host, *")


def a_measurement(program: str) -> dict:
    return {
        "model": "mine:pair", "pass": program, "batch": None, "dtype": "float32", "device": "cpu", "threads": 1,
        "speedup": 1000.0, "speedup_interval": [900.0, 1100.0],
    }  # fmt: skip


@pytest.mark.thorough
def test_reports_of_workers_before_the_run_is_killed_are_kept(user):
    path = user.makepyfile(
        """
        import time

        def test_first(fx_traced, fx_equal):
            fx_equal(fx_traced, label="first")

        def test_second(fx_traced, fx_equal):
            fx_equal(fx_traced, label="second")

        def test_last():
            time.sleep(300)
        """
    )
    runs = user.path / ".pytest_fx" / "runs"
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-n", "1", path]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while sum(len(read_records(journal)) for journal in runs.glob("*.jsonl")) < 2:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    (journal,) = runs.iterdir()
    assert [(record["row"]["program"], record["worker"]) for record in read_records(journal)] == [
        ("first", "gw0"),
        ("second", "gw0"),
    ]


@pytest.mark.thorough
def test_an_unknown_model_ends_the_run_before_workers_start(pytester):
    result = pytester.runpytest_subprocess("--fx-model", "resnet5", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*did you mean 'resnet50'*")
