"""pytest_fx.report.progress: what a run does, on a real terminal."""

import os
import re
import subprocess
import sys
import types

import pluggy
import pytest
from _pytest import hookspec

from pytest_fx.report.progress import LineProgress, SentProgress, StatusLine
from pytest_fx.report.workers_progress import CHANNEL, WorkersProgress, open_progress


def progress_on(written, column=0):
    return LineProgress(StatusLine(written.append, lambda: column))


def session_of(*names):
    """Tests of the functions that their names begin with."""
    session = types.SimpleNamespace()
    session.items = [types.SimpleNamespace(name=name, nodeid=f"test_it.py::{name}", session=session) for name in names]
    return session.items


def texts_of(written):
    """Return the texts that were shown, one line after the other."""
    return [match[1] for text in written if (match := re.search("\x1b\\[2K(fx: .*?)\x1b", text))]


def made_up_time(monkeypatch, start=0.0):
    now = [start]
    monkeypatch.setattr("pytest_fx.report.progress.time.monotonic", lambda: now[0])
    return now


def test_the_line_has_the_test_and_how_long_the_rest_takes_by_what_others_of_its_kind_took(monkeypatch):
    now = made_up_time(monkeypatch)
    written = []
    progress = progress_on(written, 7)
    items = session_of("a[1]", "b[1]", "a[2]", "b[2]")
    for item, seconds in zip(items, (10.0, 40.0, 10.0), strict=False):
        with progress.of(item):
            progress.show_test()
            now[0] += seconds
    with progress.of(items[3]):
        progress.show_test()
        progress.doing("30 pairs, about 40 s")
    texts = [text for text in written if "fx:" in text]
    assert texts[0] == "\n\x1b[2Kfx: test 1 of 4: a[1]\x1b[1A\x1b[8G"
    assert "fx: test 3 of 4, about 50 s left: a[2]" in texts[2]
    assert "fx: test 4 of 4, about 40 s left: b[2]" in texts[3]
    assert "b[2]: 30 pairs, about 40 s" in texts[4]
    assert written[-1] == "\n\x1b[2K\x1b[1A\x1b[8G"


def test_a_search_says_which_program_it_tries_and_how_long_the_others_take(monkeypatch):
    now = made_up_time(monkeypatch, 100.0)
    monkeypatch.setenv("COLUMNS", "120")
    written = []
    progress = progress_on(written)
    with progress.of(*session_of("checks")):
        for number in (1, 2, 11):
            progress.show_program(number, 31)
            now[0] += 2
        progress.show_program(11, None)
    texts = [text.partition("checks: ")[2].partition("\x1b")[0] for text in written if "fx:" in text]
    assert texts == [
        "program 1 of 31",
        "program 2 of 31, about 60 s left",
        "program 11 of 31, about 8 s left",
        "program 11 breaks a law; making it smaller",
    ]


def test_a_row_of_a_table_has_its_own_name_and_one_that_was_measured_before_says_nothing_of_others(monkeypatch):
    now = made_up_time(monkeypatch)
    written = []
    progress = progress_on(written)
    items = session_of("row 1", "row 2", "row 3")
    for item in items:
        table, row = types.SimpleNamespace(name="speed"), types.SimpleNamespace(name=item.name)
        item.callspec = types.SimpleNamespace(params={"table": table, "row": row})
    for item, seconds in zip(items, (0.01, 30.0, 30.0), strict=True):
        with progress.of(item):
            progress.show_test()
            now[0] += seconds
            if seconds < 1:
                progress.expect_longer()
    texts = [text for text in written if "fx:" in text]
    assert "fx: row 1 of 3: speed: row 1\x1b" in texts[0]
    assert "fx: row 3 of 3, about 30 s left: speed: row 3\x1b" in texts[2]


def on_the_line(pytester, monkeypatch, *options):
    """Return the text that a run writes in its line, as on a terminal of 120 columns."""
    written = []
    monkeypatch.setenv("COLUMNS", "120")
    line = StatusLine(written.append, lambda: 0)
    monkeypatch.setattr("pytest_fx.report.workers_progress.status_line_of", lambda config: line)
    pytester.runpytest_inprocess(*options)
    return "".join(written)


def test_a_check_of_random_programs_shows_them_on_the_line(pytester, monkeypatch):
    line = on_the_line(pytester, monkeypatch, "--fx-check", "fuse-conv-bn", "--fx-examples", "2")
    assert "test_pass_keeps_the_laws[fuse-conv-bn]: program 2 of 2" in line


def test_a_run_of_tables_shows_the_row_on_the_line(pytester, monkeypatch):
    options = ("--fx-size", "small", "--fx-rounds", "2", "-k", "resnet_tiny and torch.fx and not leaf")
    line = on_the_line(pytester, monkeypatch, "--fx-tables=ir-complexity", *options)
    assert "fx: row 1 of 1: ir-complexity: resnet_tiny" in line


def test_a_long_line_is_cut_to_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    written = []
    StatusLine(written.append, lambda: 0).show("x" * 50)
    assert "x" * 17 + " …" in written[0] and "x" * 18 not in written[0]


def test_nothing_of_it_is_in_a_pipe(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "--fx-no-timing", "-k", "test_capture_equals")
    assert "fx: test 1" not in str(result.stdout) and "\x1b[2K" not in str(result.stdout)


def test_on_a_narrow_terminal_the_name_is_cut_before_what_the_test_does(monkeypatch):
    written = []
    progress = progress_on(written)
    for columns in ("120", "80", "60", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        with progress.of(*session_of("test_pass_keeps_its_contract[resnet50-fuse-conv-bn, batch 8]")):
            progress.doing("30 pairs, about 40 s")
    assert texts_of(written) == [
        "fx: test 1 of 1: test_pass_keeps_its_contract[resnet50-fuse-conv-bn, batch 8]: 30 pairs, about 40 s",
        "fx: test 1 of 1: resnet50-fuse-conv-bn, batch 8: 30 pairs, about 40 s",
        "fx: test 1 of 1: …se-conv-bn, batch 8: 30 pairs, about 40 s",
        "fx: test 1 of 1: resnet50-fuse-conv-b …",
    ]


def report_of(test, when="teardown"):
    return types.SimpleNamespace(nodeid=test, when=when)


class Controller:
    """The hooks that pytest-xdist calls in its controller, and the line that they make."""

    def __init__(self, dist="load", *, width="200"):
        self.written = []
        self.manager = pluggy.PluginManager("pytest")
        self.manager.add_hookspecs(hookspec)
        config = types.SimpleNamespace(getoption=lambda name, default: dist)
        self.progress = WorkersProgress(config, StatusLine(self.written.append, lambda: 0))
        self.manager.register(self.progress)

    def collect(self, worker, *tests):
        node = types.SimpleNamespace(gateway=types.SimpleNamespace(id=worker))
        self.manager.hook.pytest_xdist_node_collection_finished(node=node, ids=tests)
        return node

    def start(self, test):
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


def test_beside_workers_the_line_has_what_is_done_and_what_runs_the_longest_first(now):
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
    assert controller.progress._seconds_left(+controller.progress._left) == 2 * 10 / 2 + 100


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
    controller = Controller("each")
    for worker in ("gw0", "gw1"):
        controller.collect(worker, "a.py::test_a", "a.py::test_b")
    controller.start("a.py::test_a")
    controller.end("a.py::test_a")
    controller.start("a.py::test_a")
    assert controller.last == "fx: 1 of 4 tests done: test_a"


def test_the_line_is_away_while_pytest_writes_and_after_the_run(now):
    controller = Controller()
    node = controller.collect("gw0", "a.py::test_a", "a.py::test_b")
    recorded = []

    class Terminal:
        @pytest.hookimpl
        def pytest_runtest_logreport(self):
            recorded.append(controller.is_shown)

    controller.manager.register(Terminal())
    controller.start("a.py::test_a")
    controller.start("a.py::test_b")
    assert controller.is_shown
    controller.end("a.py::test_a")
    assert recorded == [False] and controller.is_shown
    controller.manager.hook.pytest_testnodedown(node=node, error="gone")
    assert not controller.is_shown
    controller.progress.receive(("a.py::test_b", "30 pairs"))
    assert controller.is_shown
    controller.manager.hook.pytest_sessionfinish(session=None, exitstatus=0)
    controller.progress.receive(("a.py::test_b", "31 pairs"))
    assert not controller.is_shown


def test_what_a_worker_tells_arrives_by_a_channel_in_its_input(now):
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


def test_a_worker_sends_what_its_tests_tell_unless_its_controller_is_gone():
    sent = []

    def send(message):
        sent.append(message)
        if len(sent) > 2:
            raise OSError("cannot send to <Channel closed>")

    config = types.SimpleNamespace(stash={}, workerinput={CHANNEL: types.SimpleNamespace(send=send)})
    open_progress(config)
    (progress,) = config.stash.values()
    assert isinstance(progress, SentProgress)
    (item,) = session_of("test_a")
    with progress.of(item):
        progress.show_test()
        progress.show_program(1, 20)
        progress.expect_longer()
        progress.doing("lost")
        progress.clear()
    assert sent == [(item.nodeid, "program 1 of 20"), (item.nodeid, None), (item.nodeid, "lost")]


def test_what_a_test_does_in_a_child_process_is_shown_by_its_parent(pytester, monkeypatch):
    options = ("--fx-check", "fuse-conv-bn", "--fx-examples", "2", "--fx-isolate")
    line = on_the_line(pytester, monkeypatch, *options)
    assert "fx: test 1 of 1: test_pass_keeps_the_laws[fuse-conv-bn]\x1b" in line
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
    counted = " tests done" if "-n" in how else "fx: test 1 of "
    assert (counted in written) == ("2 pairs, about 1 s" in written) == (not ci)
    assert "fuse-conv-bn" in written.rpartition("fx: verdicts")[2]
