"""--fx-isolate: a pass that ends its process, hangs or takes too much memory fails one test, and the others run."""

import pytest
from building import last_run

pytestmark = pytest.mark.usefixtures("little_explored")

HOSTILE = """
import ctypes, itertools, os, signal, subprocess, sys, threading, time
import pytest

def loops(program):
    while True: pass

def sleeps(program): time.sleep(1e6)

def sets_handlers(program):
    for number in (signal.SIGTERM, signal.SIGABRT, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(1)
    time.sleep(1e6)

def eats(program): list(itertools.repeat(1))

def exits_0(program): os._exit(0)

def exits_3(program): os._exit(3)

def aborts(program): os.abort()

def crashes(program): ctypes.string_at(0)

def kills(program): os.kill(os.getpid(), signal.SIGKILL)

def forks(program): os.fork()

def closes(program): os.closerange(3, 100)

def prints(program):
    print("x" * 10_000_000)
    os._exit(5)

def interrupts(program): raise KeyboardInterrupt

def leaves(program): sys.exit(0)

def starts_a_daemon(program):
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    os._exit(6)

def starts_a_thread(program):
    threading.Thread(target=time.sleep, args=(1e6,)).start()

@pytest.mark.fx(timeout=1)
@pytest.mark.parametrize("name", ["loops", "sleeps", "sets_handlers"])
def test_hanging(fx_equal, name):
    fx_equal(globals()[name])

@pytest.mark.parametrize("name", [
    "eats", "exits_0", "exits_3", "aborts", "crashes", "kills", "forks", "closes", "prints", "interrupts", "leaves",
    "starts_a_daemon", "starts_a_thread",
])
def test_ending(fx_equal, name):
    fx_equal(globals()[name])

def test_good(fx_traced, fx_equal, tmp_path):
    assert os.getpid() != PROCESS
    print("printed in the child")
    fx_equal(fx_traced, label="good")

PROCESS = os.getpid()
"""
"""Passes of an imaginary user. Their functions are run in children only."""
TOLD = {
    "loops": "ran longer than 1 s",
    "sleeps": "ran longer than 1 s",
    "sets-handlers": "ran longer than 1 s",
    "eats": "needed more than 300 MiB",
    "exits-0": "ended its process with status 0 (os._exit)",
    "exits-3": "ended its process with status 3 (os._exit)",
    "aborts": "ended its process by the signal SIGABRT",
    "crashes": "ended its process by the signal SIGSEGV",
    "kills": "ended its process by the signal SIGKILL",
    "closes": "closed the files by which its process answers",
    "prints": "ended its process with status 5 (os._exit)",
    "interrupts": "raised KeyboardInterrupt",
    "starts-a-daemon": "ended its process with status 6 (os._exit)",
}
MLP = ("--fx-model", "mlp", "--fx-rounds", "2", "-v")


def test_each_hostile_pass_is_one_failure_that_names_it_and_the_others_go_on(pytester):
    path = pytester.makepyfile(HOSTILE)
    result = pytester.runpytest(*MLP, "--fx-isolate", "--fx-memory-limit", "300", "-p", "no:timeout", path)
    result.assert_outcomes(failed=len(TOLD) + 2, passed=2)
    for name, what in TOLD.items():
        result.stdout.fnmatch_lines_random(f"pytest_fx.errors.ProcessEnded: {name} on mlp {what}")
    result.stdout.fnmatch_lines_random(
        [
            "  where  *, in sleeps:  def sleeps(program): time.sleep(1e6)",
            "  where  *, in crashes:  def crashes(program): ctypes.string_at(0)",
            "*law 'process untouched': forks changed the process: a child process, forked by os.fork*",
            "*law 'refusal': leaves crashed with *",
            "*mlp    good  *",
        ]
    )
    records = last_run(pytester.path)["records"]
    assert "good" in [record["row"]["program"] for record in records]


MEASURES_AND_ENDS = """
import os

def test_it(fx_traced, fx_equal):
    fx_equal(fx_traced, label="measured")
    os._exit(0)

def test_next(fx_traced, fx_equal): fx_equal(fx_traced, label="next")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "beside xdist"])
def test_measurements_before_the_end_of_the_process_are_kept(pytester, options):
    path = pytester.makepyfile(MEASURES_AND_ENDS)
    result = pytester.runpytest(*MLP, "--fx-isolate", *options, path)
    result.assert_outcomes(failed=1, passed=1)
    records = last_run(pytester.path)["records"]
    assert sorted(record["row"]["program"] for record in records) == ["measured", "next"]
    result.stdout.fnmatch_lines(["*ProcessEnded: the test test_it?mlp? of mlp ended its process with status 0*"])
    result.stdout.fnmatch_lines(["!  mlp    measured *wrong*", "   mlp    next *right*"])


REPORTING = """
import os, warnings
import pytest

@pytest.fixture(scope="session")
def once(tmp_path_factory):
    with open("set_up", "a") as file: file.write("set up\\n")
    yield
    with open("set_up", "a") as file: file.write("torn down\\n")

def test_warning(once):
    warnings.warn("from the child")

def test_output(once):
    print("printed")
    assert [1] == [2]

def test_skip(once): pytest.skip("not today")

def test_properties(once, record_property, tmp_path): record_property("colour", "green")

def test_end(once):
    print("last words")
    os._exit(0)
"""


def test_reports_warnings_output_and_properties_come_back_and_fixtures_of_the_session_are_set_up_once(pytester):
    path = pytester.makepyfile(REPORTING)
    result = pytester.runpytest("--fx-isolate", "-W", "default", "--junit-xml=junit.xml", path, "-k", "not test_end")
    result.assert_outcomes(passed=2, failed=1, skipped=1, warnings=2)  # one is that of record_property
    result.stdout.fnmatch_lines(
        ["E*assert ?1? == ?2?", "*Captured stdout call*", "printed", "*warnings summary*", "*: from the child"]
    )
    assert 'name="colour" value="green"' in (pytester.path / "junit.xml").read_text()
    assert (pytester.path / "set_up").read_text() == "set up\ntorn down\n"


@pytest.mark.thorough
def test_beside_xdist_each_warning_arrives_once(pytester):
    result = pytester.runpytest("--fx-isolate", "-n", "1", "-W", "default", pytester.makepyfile(REPORTING))
    result.assert_outcomes(passed=2, failed=2, skipped=1, warnings=1)


def test_output_before_the_end_of_the_process_is_shown(pytester):
    path = pytester.makepyfile(REPORTING)
    result = pytester.runpytest("--fx-isolate", "--capture=fd", path, "-k", "test_end")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Captured stdout call*", "last words"])


def test_a_model_that_ends_the_process_where_it_is_made_fails_once(pytester):
    pytester.makepyfile(broken="import os\ndef model(): os._exit(0)")
    result = pytester.runpytest("--fx-model", "broken:model", "--fx-isolate", "--fx-no-timing")
    assert result.parseoutcomes()["errors"] == 1
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*ProcessEnded: the model broken:model ended its process with status 0*"])


def test_a_check_on_random_programs_names_the_program(pytester):
    pytester.makepyfile(mine="import os\ndef exits(program): os._exit(0)")
    result = pytester.runpytest("--fx-check", "mine:exits", "--fx-isolate")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*law 'process untouched': exits ended its process with status 0*",
            "*the smallest program found, in evaluation mode:",
            "*a test of it alone: *test_exits_keeps_process_untouched.py",
        ]
    )


def test_a_system_without_forks_is_reported(pytester, monkeypatch):
    monkeypatch.setattr("pytest_fx.isolation.isolated_tests.unavailable", lambda: "this is another system")
    result = pytester.runpytest("--fx-isolate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*--fx-isolate is not for this system: this is another system")


COMPUTED_AT_IMPORT = """
import torch
torch.set_num_threads(2)
torch.ones(2**22).exp_()

def test_it(): pass
"""


@pytest.mark.thorough
def test_threads_that_were_started_while_tests_were_collected_are_reported(pytester):
    pytester.makeconftest(
        "from pytest_fx.isolation import isolated_tests\nisolated_tests._START = isolated_tests.Limits(seconds=1.0)"
    )
    result = pytester.runpytest_subprocess("--fx-isolate", pytester.makepyfile(COMPUTED_AT_IMPORT))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--fx-isolate: a child process ran longer than 1 s when it computed for the first time", "  try    OMP_NUM_*"]
    )


TEMPORARY = """
import os, pathlib

def test_first(tmp_path): pathlib.Path("where").write_text(str(tmp_path))

def test_second(): os._exit(0)

def test_third(tmp_path): assert pathlib.Path(pathlib.Path("where").read_text()).exists()
"""


def test_a_new_child_leaves_the_temporary_folders_of_the_old_one_alone(pytester):
    result = pytester.runpytest("--fx-isolate", pytester.makepyfile(TEMPORARY))
    result.assert_outcomes(passed=2, failed=1)


def test_the_alarm_of_pytest_timeout_ends_the_child_and_fails_the_test(pytester):
    path = pytester.makepyfile("import time\ndef test_waits(): time.sleep(1e6)\ndef test_next(): pass")
    result = pytester.runpytest("--fx-isolate", "--timeout", "1", path)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*Timeout*")


def test_a_run_that_stops_early_tears_down_the_fixtures_of_the_child(pytester):
    result = pytester.runpytest("--fx-isolate", "-x", "-W", "default", pytester.makepyfile(REPORTING))
    result.assert_outcomes(passed=1, failed=1)
    assert (pytester.path / "set_up").read_text() == "set up\ntorn down\n"


SUBTESTS = """
import os

def test_passes(subtests):
    for number in range(3):
        with subtests.test(number=number): pass

def test_fails(subtests):
    for number in range(3):
        with subtests.test(number=number): assert number != 1

def test_ends(subtests):
    for number in range(5):
        with subtests.test(number=number): pass
    os._exit(3)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="subtests came with pytest 9")
def test_subtests_are_counted_as_without_it(pytester):
    path = pytester.makepyfile(SUBTESTS)
    plain = pytester.runpytest_subprocess(path, "--deselect", f"{path.name}::test_ends").parseoutcomes()
    isolated = pytester.runpytest_subprocess("--fx-isolate", path, "--deselect", f"{path.name}::test_ends")
    assert isolated.parseoutcomes() == {**plain, "deselected": 1}
    isolated.stdout.fnmatch_lines(["contains 1 failed subtest"])
    ended = pytester.runpytest_subprocess("--fx-isolate", path, "-k", "ends")
    ended.assert_outcomes(failed=1, deselected=2)
    ended.stdout.fnmatch_lines(["*ended its process with status 3*"])


TEARS_DOWN = """
import os, signal, time
import pytest

@pytest.fixture(scope="session")
def folder():
    yield
    open("torn_down", "w").close()

def test_before(folder): pass
def test_stops(folder):
    {stop}
def test_after(folder): pass
"""


@pytest.mark.parametrize(
    "stop, status",
    [
        ("pytest.exit('enough', 4)", 4),
        ("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)", pytest.ExitCode.INTERRUPTED),
    ],
    ids=["exit", "Ctrl-C"],
)
def test_session_fixtures_are_torn_down_when_the_run_is_stopped(pytester, stop, status):
    # A run that is started in the background ignores the signal otherwise.
    pytester.makeconftest("import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)")
    path = pytester.makepyfile(TEARS_DOWN.format(stop=stop))
    result = pytester.runpytest_subprocess("--fx-isolate", path)
    assert result.ret == status
    assert (pytester.path / "torn_down").exists()
    result.assert_outcomes(passed=1)


def test_hooks_of_others_get_each_report_once(pytester):
    pytester.makeconftest(
        """
        def pytest_runtest_logreport(report):
            with open("reports.txt", "a") as file:
                print(report.when, file=file)
        """
    )
    path = pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess("--fx-isolate", path).assert_outcomes(passed=1)
    assert (pytester.path / "reports.txt").read_text().split() == ["setup", "call", "teardown"]
