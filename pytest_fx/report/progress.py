"""Progress of a run and its remaining time, in a line below pytest's own on a real terminal.

The hooks of pytest report the start and end of each test, also in workers of pytest-xdist. In between, a test reports
its own progress; in a worker it goes through an execnet channel, which is a part of the worker's input.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_fx.options import OPTIONS
from pytest_fx.parallel.distribution import TIMING_GROUP, is_worker, plain_name

PROGRESS = pytest.StashKey["Progress"]()
"""The stash key of the :class:`Progress` of a run on a terminal, of its workers and of its child processes."""
CHANNEL = "fx_progress"
"""The name of the channel in the input of a worker; absent if no progress is shown."""
LEAST_LEFT = 5.0
"""Minimum remaining time that is shown, in seconds."""
LEAST_NAME = 12
"""Minimum length of a shortened test name, in characters."""
_ENDS = ("teardown", "???")
"""The phases that end a test; the second is reported for a test whose worker has died."""


def shown_seconds(seconds: float) -> str:
    """Return a time in a readable unit, at least one second.

    >>> shown_seconds(0.2), shown_seconds(42.3), shown_seconds(200), shown_seconds(7300)
    ('1 s', '42 s', '3 min', '2.0 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class StatusLine:
    """A line below that of pytest, written directly to the terminal, which bypasses pytest's capture."""

    def __init__(self, write: Callable[[str], object], column: Callable[[], int]) -> None:
        """Take a function that writes to the terminal, and one that returns pytest's column in its line."""
        self._write = write
        self._column = column
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show ``text``, cut to the width of the terminal."""
        width = shutil.get_terminal_size().columns
        text = text if len(text) < width else f"{text[: width - 3]} …"
        self._write(f"\n\x1b[2K{text}\x1b[1A\x1b[{self._column() + 1}G")
        self._is_shown = True

    def clear(self) -> None:
        """Remove the line; called before pytest writes."""
        if self._is_shown:
            self._write(f"\n\x1b[2K\x1b[1A\x1b[{self._column() + 1}G")
            self._is_shown = False


def with_name(head: str, name: str, what: str = "") -> str:
    """Return a line with the name of a test and its activity; the name is shortened on a narrow terminal.

    >>> with_name("fx: test 1 of 9", "test_speed[resnet50]", "30 pairs")
    'fx: test 1 of 9: test_speed[resnet50]: 30 pairs'
    """
    tail = f": {what}" if what else ""
    room = shutil.get_terminal_size().columns - 1 - len(f"{head}: {tail}")
    if len(name) > room and name.endswith("]"):
        name = name.partition("[")[2].removesuffix("]")
    if len(name) > room >= LEAST_NAME:
        name = f"…{name[1 - room :]}"
    return f"{head}: {name}{tail}"


class Progress:
    """A sender of the running test's progress to the process that shows it; without a receiver it does nothing."""

    test = ""
    """The running test."""
    _searched = 0.0

    def __init__(self, send: Callable[[str, str | None], object] = lambda test, what: None) -> None:
        """Take ``send``, which is called with the name of a test and its activity, or None as for ``doing``."""
        self._send = send

    def doing(self, what: str | None) -> None:
        """Send the current activity of the test.

        None means that the test has nothing to do, so that its time does not predict that of others.
        """
        self._send(self.test, what)

    def clear(self) -> None:
        """Remove the status line of this process, if it has one."""

    def show_program(self, number: int, count: int | None) -> None:
        """Send the number of the random program that the test tries, of ``count``; None while it minimizes that one."""
        if count is None:
            return self.doing(f"program {number} breaks a law; making it smaller")
        now = time.monotonic()
        if number == 1:
            self._searched = now
        remaining = (now - self._searched) / (number - 1) * (count - number + 1) if number > 1 else None
        self.doing(f"program {number} of {count}{shown_rest(remaining)}")


def progress_of(config: pytest.Config) -> Progress:
    """Return the receiver of the progress of tests in this process."""
    return config.stash.get(PROGRESS, None) or Progress()


def open_progress(config: pytest.Config) -> None:
    """Show the progress of a run that uses the plugin on a terminal; in a worker, send it to the controller."""
    if is_worker(config):
        channel = config.workerinput.get(CHANNEL)  # type: ignore[attr-defined]
        if channel is not None:
            config.stash[PROGRESS] = Progress(lambda test, what: _send_by(channel, test, what))
    elif config.stash[OPTIONS].used or config.getoption("fx_tables") is not None:
        line = status_line_of(config)
        if line is not None:
            config.stash[PROGRESS] = progress = RunProgress(line, config.getoption("dist", "no") == "each")
            config.pluginmanager.register(progress, "fx-progress")


def _send_by(channel: Any, test: str, what: str | None) -> None:
    with contextlib.suppress(OSError):  # the controller has ended
        channel.send((test, what))


class Durations:
    """Durations of finished tests, by kind."""

    def __init__(self) -> None:
        self._durations: dict[str, list[float]] = defaultdict(list)

    def add(self, kind: str, seconds: float) -> None:
        """Add the time of a test."""
        self._durations[kind].append(seconds)

    def expected(self, kinds: Iterable[str]) -> float | None:
        """Return the expected seconds of tests: the mean of each kind, or of all tests if the kind is new.

        None before any test has finished.
        """
        means = {kind: sum(durations) / len(durations) for kind, durations in self._durations.items()}
        if not means:
            return None
        usual = sum(map(sum, self._durations.values())) / sum(map(len, self._durations.values()))
        return sum(means.get(kind, usual) for kind in kinds)


@dataclass(slots=True)
class _RunningTest:
    """A running test."""

    started: float
    """Its start, by ``time.monotonic()``."""
    what: str = ""
    """Its current activity, if it has reported one."""
    is_usual: bool = True
    """Whether its time predicts that of other tests of its kind."""


class RunProgress(Progress):
    """A display of finished tests, the remaining time, and the activities of running tests, the longest first.

    Threads of execnet read the channels. A lock keeps them from writing while pytest writes.
    """

    def __init__(self, line: StatusLine, repeats: bool = False) -> None:
        """Take the line to write to, and whether each worker runs all tests (``repeats``)."""
        super().__init__(lambda test, what: self.receive((test, what)))
        self._line = line
        self._repeats = repeats
        self._lock = threading.RLock()
        self._is_over = False
        self._channels: list[Any] = []
        self._workers: set[str] = set()
        self._unfinished: Counter[str] = Counter()
        self._timings: frozenset[str] = frozenset()
        self._count = 0
        self._running: dict[str, _RunningTest] = {}
        self._seconds = Durations()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Add a channel to the input of a worker."""
        channel = node.gateway.newchannel()
        channel.setcallback(self.receive)
        self._channels.append(channel)  # a channel without references is closed
        node.workerinput[CHANNEL] = channel

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the names of the tests that this process runs."""
        self._collect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Record the names of the tests that a worker collected."""
        with self._lock:
            self._workers.add(node.gateway.id)
        self._collect(ids)

    def _collect(self, ids: Sequence[str]) -> None:
        with self._lock:
            if not self._count or self._repeats:
                self._unfinished.update(map(plain_name, ids))
                self._timings = frozenset(plain_name(test) for test in ids if test.endswith(f"@{TIMING_GROUP}"))
                self._count += len(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, Any, Any]:
        """Record the start of a test."""
        with self._hidden():
            result = yield
            self._running.setdefault(plain_name(nodeid), _RunningTest(time.monotonic()))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Record the end of a test."""
        with self._hidden():
            result = yield
            if report.when in _ENDS:
                self._end(plain_name(report.nodeid))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        """Hide the line while pytest writes."""
        with self._hidden():
            return (yield)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Remove the line until another test begins or ends: pytest-xdist writes that a worker has died."""
        with self._lock:
            self._workers.discard(node.gateway.id)
            self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Remove the line for good."""
        with self._lock:
            self._is_over = True
            self.clear()

    def receive(self, message: tuple[str, str | None]) -> None:
        """Record the activity of a test, or None as for ``doing``."""
        test, what = plain_name(message[0]), message[1]
        with self._lock:
            running = self._running.setdefault(test, _RunningTest(time.monotonic()))
            if what is None:
                running.is_usual = False
            else:
                running.what = what
                self._show()

    def clear(self) -> None:
        """Remove the line until it is shown again."""
        with self._lock:
            self._line.clear()

    @contextlib.contextmanager
    def _hidden(self) -> Generator[None]:
        """Hide the line inside the block, so that pytest can write."""
        with self._lock:
            self.clear()
            yield
            self._show()

    def _end(self, test: str) -> None:
        self._unfinished[test] -= 1
        running = self._running.pop(test, None)
        if running is not None and running.is_usual:
            self._seconds.add(kind_of(test), time.monotonic() - running.started)

    def _show(self) -> None:
        """Show the line if a test is running."""
        if self._is_over or not self._running or not self._count:
            return
        tests = +self._unfinished
        head = f"fx: {self._count - tests.total()} of {self._count} tests done{shown_rest(self._seconds_left(tests))}"
        first, *others = sorted(self._running.items(), key=lambda entry: entry[1].started)
        parts = [with_name(head, name_of(first[0]), first[1].what)]
        parts += [": ".join(filter(None, (name_of(test), running.what))) for test, running in others]
        self._line.show("; ".join(parts))

    def _seconds_left(self, remaining: Counter[str]) -> float | None:
        """Return the expected remaining seconds: checks in parallel on all workers, then timings on one."""
        tests = list(remaining.elements())
        checks = self._seconds.expected(kind_of(test) for test in tests if test not in self._timings)
        timings = self._seconds.expected(kind_of(test) for test in tests if test in self._timings)
        return None if checks is None or timings is None else checks / max(len(self._workers), 1) + timings


def shown_rest(remaining: float | None) -> str:
    """Return a phrase on the remaining time; an empty text if it is unknown or short."""
    return f", about {shown_seconds(remaining)} left" if remaining is not None and remaining >= LEAST_LEFT else ""


def name_of(test: str) -> str:
    """Return the name of a test without its file and class.

    >>> name_of("tests/test_speed.py::TestNets::test_one[a::b]")
    'test_one[a::b]'
    """
    path, bracket, parameters = test.partition("[")
    return path.rpartition("::")[2] + bracket + parameters


def kind_of(test: str) -> str:
    """Return the kind of a test, whose tests take about equally long: its function, or its table of rows."""
    function, _, parameters = name_of(test).partition("[")
    return f"{function} {parameters.partition(': ')[0] if ': ' in parameters else ''}"


def status_line_of(config: pytest.Config) -> StatusLine | None:
    """Return the status line of a run; None if its terminal cannot show one, as in a pipe or on a CI server."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.isatty or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return None
    terminal = os.dup(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    config.add_cleanup(lambda: os.close(terminal))
    owner = os.getpid()

    def write(text: str) -> None:
        if os.getpid() == owner:  # a child process does not know where pytest writes
            with contextlib.suppress(OSError):
                os.write(terminal, text.encode())

    return StatusLine(write, lambda: config.get_terminal_writer().width_of_current_line)
