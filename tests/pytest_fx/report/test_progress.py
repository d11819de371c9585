"""pytest_fx.report.progress: the progress of a run, on a real terminal."""

import os
import re
import subprocess
import sys
import types

import pluggy
import pytest
from _pytest import hookspec

from pytest_fx.report.progress import CHANNEL, Progress, RunProgress, StatusLine, open_progress


def texts_of(written):
    """Return the status lines that were written, in order."""
    return [match[1] for text in written if (match := re.search("\x1b\\[2K(fx: .*?)\x1b", text))]


def made_up_time(monkeypatch, start=0.0):
    now = [start]
    monkeypatch.setattr("pytest_fx.report.progress.time.monotonic", lambda: now[0])
    return now


def test_a_search_shows_the_program_number_and_the_time_left(monkeypatch):
    now = made_up_time(monkeypatch, 100.0)
    texts = []
    progress = Progress(lambda test, what: texts.append(what))
    for number in (1, 2, 11):
        progress.show_program(number, 31)
        now[0] += 2
    progress.show_program(11, None)
    assert texts == [
        "program 1 of 31",
        "program 2 of 31, about 60 s left",
        "program 11 of 31, about 8 s left",
        "program 11 breaks a law; making it smaller",
    ]


def on_the_line(pytester, monkeypatch, *options):
    """Return all that a run writes to its status line, as on a terminal of 120 columns."""
    written = []
    monkeypatch.setenv("COLUMNS", "120")
    line = StatusLine(written.append, lambda: 0)
    monkeypatch.setattr("pytest_fx.report.progress.status_line_of", lambda config: line)
    pytester.runpytest_inprocess(*options)
    return "".join(written)


def test_a_check_of_random_programs_shows_them_on_the_line(pytester, monkeypatch):
    line = on_the_line(pytester, monkeypatch, "--fx-check", "fuse-conv-bn", "--fx-examples", "2")
    assert "test_pass_keeps_the_laws[fuse-conv-bn]: program 2 of 2" in line


def test_a_run_of_tables_shows_the_row_on_the_line(pytester, monkeypatch):
    options = ("--fx-size", "small", "--fx-rounds", "2", "-k", "resnet_tiny and torch.fx and not leaf")
    line = on_the_line(pytester, monkeypatch, "--fx-tables=ir-complexity", *options)
    assert "fx: 0 of 1 tests done: test_table[ir-complexity:resnet_tiny" in line


def test_a_long_line_is_cut_to_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    written = []
    StatusLine(written.append, lambda: 0).show("x" * 50)
    assert "x" * 17 + " …" in written[0] and "x" * 18 not in written[0]


def test_nothing_of_it_is_in_a_pipe(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-no-timing", "-k", "test_capture_equals")
    assert "tests done" not in str(result.stdout) and "\x1b[2K" not in str(result.stdout)


def test_on_a_narrow_terminal_the_name_is_cut_before_the_activity(monkeypatch):
    controller = Controller()
    test = "test_pass_keeps_its_contract[resnet50-fuse-conv-bn, batch 8]"
    controller.collect_here(test)
    controller.start(test)
    for columns in ("120", "90", "70", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        controller.progress.doing("30 pairs, about 40 s")
    assert texts_of(controller.written)[1:] == [
        "fx: 0 of 1 tests done: test_pass_keeps_its_contract[resnet50-fuse-conv-bn, batch 8]: 30 pairs, about 40 s",
        "fx: 0 of 1 tests done: resnet50-fuse-conv-bn, batch 8: 30 pairs, about 40 s",
        "fx: 0 of 1 tests done: …0-fuse-conv-bn, batch 8: 30 pairs, about 40 s",
        "fx: 0 of 1 tests done: resnet50-fuse- …",
    ]


def report_of(test, when="teardown"):
    return types.SimpleNamespace(nodeid=test, when=when)


class Controller:
    """The hooks that pytest and pytest-xdist call in the process with the terminal, and the line that they make."""

    def __init__(self, repeats=False, column=0):
        self.written = []
        self.manager = pluggy.PluginManager("pytest")
        self.manager.add_hookspecs(hookspec)
        self.progress = RunProgress(StatusLine(self.written.append, lambda: column), repeats)
        self.manager.register(self.progress)

    def collect(self, worker, *tests):
        node = types.SimpleNamespace(gateway=types.SimpleNamespace(id=worker))
        self.manager.hook.pytest_xdist_node_collection_finished(node=node, ids=tests)
        return node

    def collect_here(self, *tests):
        session = types.SimpleNamespace(items=[types.SimpleNamespace(nodeid=test) for test in tests])
        self.manager.hook.pytest_collection_finish(session=session)

    def start(self, test):
        self.progress.test = test
        self.manager.hook.pytest_runtest_logstart(nodeid=test, location=("", 0, ""))

    def end(self, test, when="teardown"):
        self.manager.hook.pytest_runtest_logreport(report=report_of(test, when))

    @property
    def last(self):
        return texts_of(self.written)[-1]

    @property
    def is_shown(self):
        return "fx: " in self.written[-1]


@pytest.fixture
def now(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return made_up_time(monkeypatch)


def test_the_line_has_the_test_and_the_time_left_estimated_from_similar_tests(now):
    controller = Controller(column=7)
    tests = ["it.py::a[1]", "it.py::b[1]", "it.py::a[2]", "it.py::b[2]"]
    controller.collect_here(*tests)
    for test, seconds in zip(tests, (10.0, 40.0, 10.0), strict=False):
        controller.start(test)
        now[0] += seconds
        controller.end(test)
    controller.start(tests[3])
    controller.progress.doing("30 pairs, about 40 s")
    lines = [text for text in controller.written if "fx:" in text]
    assert lines[0] == "\n\x1b[2Kfx: 0 of 4 tests done: a[1]\x1b[1A\x1b[8G"
    assert "fx: 2 of 4 tests done, about 50 s left: a[2]" in lines[2]
    assert "fx: 3 of 4 tests done, about 40 s left: b[2]" in lines[3]
    assert "b[2]: 30 pairs, about 40 s" in lines[4]
    controller.end(tests[3])
    assert controller.written[-1] == "\n\x1b[2K\x1b[1A\x1b[8G"


def test_beside_workers_the_line_has_the_count_and_the_longest_running_test_first(now):
    controller = Controller()
    for worker in ("gw0", "gw1"):
        controller.collect(worker, "a.py::test_a[1]", "a.py::test_a[2]", "a.py::test_b", "a.py::test_c")
    controller.start("a.py::test_a[1]")
    now[0] += 1
    controller.start("a.py::test_b")
    assert controller.last == "fx: 0 of 4 tests done: test_a[1]; test_b"
    controller.progress.receive(("a.py::test_b", "program 3 of 100"))
    assert controller.last == "fx: 0 of 4 tests done: test_a[1]; test_b: program 3 of 100"
    now[0] += 29
    for when in ("setup", "call", "teardown"):
        controller.end("a.py::test_a[1]", when)
    assert controller.last == "fx: 1 of 4 tests done, about 45 s left: test_b: program 3 of 100"
    controller.end("a.py::test_b", "???")  # its worker has died
    assert not controller.is_shown


def test_beside_workers_timings_are_expected_one_after_the_other_and_checks_side_by_side(now):
    controller = Controller()
    tests = ["a.py::test_check[1]", "a.py::test_check[2]", "a.py::test_check[3]", "a.py::test_time[1]@fx-timing"]
    for worker in ("gw0", "gw1"):
        controller.collect(worker, *tests, "a.py::test_time[2]@fx-timing")
    for test, seconds in (("a.py::test_check[1]", 10), ("a.py::test_time[1]", 100)):
        controller.start(test)
        now[0] += seconds
        controller.end(test)
    controller.start("a.py::test_time[2]")
    assert controller.last == "fx: 2 of 5 tests done, about 2 min left: test_time[2]"


def test_beside_workers_a_row_that_was_measured_before_says_nothing_of_others(now):
    controller = Controller()
    controller.collect("gw0", "a.py::test_table[speed: one]", "a.py::test_table[speed: two]")
    controller.start("a.py::test_table[speed: one]")
    controller.progress.receive(("a.py::test_table[speed: one]", None))
    now[0] += 10
    controller.end("a.py::test_table[speed: one]")
    controller.start("a.py::test_table[speed: two]")
    now[0] += 60
    controller.progress.receive(("a.py::test_table[speed: two]", "30 pairs"))
    assert controller.last == "fx: 1 of 2 tests done: test_table[speed: two]: 30 pairs"


def test_where_each_worker_runs_all_tests_each_of_them_counts(now):
    controller = Controller(repeats=True)
    for worker in ("gw0", "gw1"):
        controller.collect(worker, "a.py::test_a", "a.py::test_b")
    controller.start("a.py::test_a")
    controller.end("a.py::test_a")
    controller.start("a.py::test_a")
    assert controller.last == "fx: 1 of 4 tests done: test_a"


def test_the_line_is_away_while_pytest_writes_and_after_the_run(now):
    controller = Controller()
    node = controller.collect("gw0", "a.py::test_a", "a.py::test_b")
    shown_while_writing = []

    class Terminal:
        @pytest.hookimpl
        def pytest_runtest_logreport(self):
            shown_while_writing.append(controller.is_shown)

    controller.manager.register(Terminal())
    controller.start("a.py::test_a")
    controller.start("a.py::test_b")
    assert controller.is_shown
    controller.end("a.py::test_a")
    assert shown_while_writing == [False] and controller.is_shown
    controller.manager.hook.pytest_testnodedown(node=node, error="gone")
    assert not controller.is_shown
    controller.progress.receive(("a.py::test_b", "30 pairs"))
    assert controller.is_shown
    controller.manager.hook.pytest_sessionfinish(session=None, exitstatus=0)
    controller.progress.receive(("a.py::test_b", "31 pairs"))
    assert not controller.is_shown


def test_progress_of_a_worker_arrives_by_the_channel_in_its_input(now):
    execnet = pytest.importorskip("execnet")
    controller = Controller()
    group = execnet.Group()
    gateway = group.makegateway("popen//python=" + sys.executable)
    try:
        node = types.SimpleNamespace(gateway=gateway, workerinput={"workerid": "gw0"})
        controller.manager.hook.pytest_configure_node(node=node)
        channel = gateway.remote_exec(
            "given = channel.receive(); given['fx_progress'].send(('a.py::test_a', '30 pairs'))"
        )
        controller.collect("gw0", "a.py::test_a")
        channel.send(node.workerinput)
        channel.waitclose(10)
    finally:
        group.terminate(5)
    assert controller.last == "fx: 0 of 1 tests done: test_a: 30 pairs"


def test_a_worker_sends_the_progress_of_its_tests_unless_its_controller_is_gone():
    sent = []

    def send(message):
        sent.append(message)
        if len(sent) > 2:
            raise OSError("cannot send to <Channel closed>")

    config = types.SimpleNamespace(stash={}, workerinput={CHANNEL: types.SimpleNamespace(send=send)})
    open_progress(config)
    (progress,) = config.stash.values()
    progress.test = "a.py::test_a"
    progress.show_program(1, 20)
    progress.doing(None)
    progress.doing("lost")
    progress.clear()
    assert sent == [("a.py::test_a", "program 1 of 20"), ("a.py::test_a", None), ("a.py::test_a", "lost")]


def test_progress_of_a_child_process_is_shown_by_its_parent(pytester, monkeypatch):
    options = ("--fx-check", "fuse-conv-bn", "--fx-examples", "2", "--fx-isolate")
    line = on_the_line(pytester, monkeypatch, *options)
    assert "fx: 0 of 1 tests done: test_pass_keeps_the_laws[fuse-conv-bn]\x1b" in line
    assert "test_pass_keeps_the_laws[fuse-conv-bn]: program 2 of 2\x1b" in line


def on_a_terminal(pytester, *options, ci=""):
    """Return the output of pytest on a terminal of 120 columns."""
    reading, writing = os.openpty()
    environment = {**os.environ, "CI": ci, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "pytest", *options]
    process = subprocess.Popen(command, stdout=writing, stderr=writing, stdin=subprocess.DEVNULL, env=environment)
    os.close(writing)
    written = b""
    while True:
        try:
            part = os.read(reading, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(reading)
    assert process.wait() == 0, written.decode()
    return written.decode()


TIMED = (
    "--fx-model",
    "resnet_tiny",
    "--fx-rounds",
    "2",
    "--fx-pass",
    "fuse-conv-bn",
    "-k",
    "test_pass_timing or well_formed",
)


@pytest.mark.thorough
@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize("how", [(), ("--fx-isolate",), ("-n", "2"), ("-n", "2", "--fx-isolate")])
def test_it_is_on_a_terminal_while_pytest_captures_but_not_in_ci(pytester, how, ci):
    if "-n" in how:
        pytest.importorskip("xdist")
    written = on_a_terminal(pytester, *TIMED, *how, ci=ci)
    assert (" tests done" in written) == ("2 pairs, about 1 s" in written) == (not ci)
    assert "fuse-conv-bn" in written.rpartition("fx: verdicts")[2]
