"""What a run does at the moment and how long it will take, in a line below pytest's own on a real terminal.

The hooks of pytest say which tests begin and end, also of those that workers of pytest-xdist run. What a test does in
between is told by the test: in a worker by a channel of execnet's own, which is a part of the worker's input.
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
"""Where the :class:`pytest.Config` of a run on a terminal, of its workers and of its child processes keeps theirs."""
CHANNEL = "fx_progress"
"""What the channel is called in the input of a worker, which has none where nothing is shown."""
LEAST_LEFT = 5.0
"""Seconds below which it is not said how long the rest of a run will take."""
LEAST_NAME = 12
"""Characters that the name of a test is cut to at most, where the line is too long for the terminal."""
_ENDS = ("teardown", "???")
"""The phase that a test ends with; the second one is that of a test whose worker has died."""


def shown_seconds(seconds: float) -> str:
    """Return a time in the unit that reads best, a second at least.

    >>> shown_seconds(0.2), shown_seconds(42.3), shown_seconds(200), shown_seconds(7300)
    ('1 s', '42 s', '3 min', '2.0 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class StatusLine:
    """A line below that of pytest, written to the terminal itself, past what pytest captures."""

    def __init__(self, write: Callable[[str], object], column: Callable[[], int]) -> None:
        """``write`` writes to the terminal, and ``column`` says how much of its line pytest has written."""
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
        """Take the line away, which is done before pytest writes."""
        if self._is_shown:
            self._write(f"\n\x1b[2K\x1b[1A\x1b[{self._column() + 1}G")
            self._is_shown = False


def with_name(head: str, name: str, what: str = "") -> str:
    """Return a line with the name of a test and what it does, whose name is shortened where the terminal is narrow.

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
    """Sends what the test that runs tells of itself to the process that shows it; nowhere if nothing is shown."""

    test = ""
    """The test that runs."""
    _searched = 0.0

    def __init__(self, send: Callable[[str, str | None], object] = lambda test, what: None) -> None:
        """``send`` is called with the name of a test and what it does, or None where others will take longer."""
        self._send = send

    def doing(self, what: str | None) -> None:
        """Send what the test does now.

        None says that others will take longer than this one, which has nothing to do.
        """
        self._send(self.test, what)

    def clear(self) -> None:
        """Take away what this process shows."""

    def show_program(self, number: int, count: int | None) -> None:
        """Send which of ``count`` random programs the test tries, or that it makes one smaller, if that is None."""
        if count is None:
            return self.doing(f"program {number} breaks a law; making it smaller")
        now = time.monotonic()
        if number == 1:
            self._searched = now
        left = (now - self._searched) / (number - 1) * (count - number + 1) if number > 1 else None
        self.doing(f"program {number} of {count}{shown_rest(left)}")


def progress_of(config: pytest.Config) -> Progress:
    """Return what takes the progress of tests in this process."""
    return config.stash.get(PROGRESS, None) or Progress()


def open_progress(config: pytest.Config) -> None:
    """Show how far a run is, if it uses the plugin on a terminal; let a worker tell its controller."""
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
    with contextlib.suppress(OSError):  # the controller is gone
        channel.send((test, what))


class Durations:
    """How long tests took, by their kinds."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = defaultdict(list)

    def add(self, kind: str, seconds: float) -> None:
        """Take the time of a test."""
        self._taken[kind].append(seconds)

    def expected(self, kinds: Iterable[str]) -> float | None:
        """Return how long tests will take if each takes as long as others of its kind did, or as others at all."""
        known = {kind: sum(taken) / len(taken) for kind, taken in self._taken.items()}
        if not known:
            return None
        usual = sum(map(sum, self._taken.values())) / sum(map(len, self._taken.values()))
        return sum(known.get(kind, usual) for kind in kinds)


@dataclass(slots=True)
class _RunningTest:
    """A test that runs."""

    started: float
    """When it began, by ``time.monotonic()``."""
    what: str = ""
    """What it does, if it has told that."""
    is_usual: bool = True
    """Whether others of its kind take about as long."""


class RunProgress(Progress):
    """Shows how many tests are done, how long the others will take, and what those do that run, the longest first.

    Channels are read in threads of execnet's. A lock keeps them from writing while pytest does.
    """

    def __init__(self, line: StatusLine, repeats: bool = False) -> None:
        """``repeats`` says that each worker runs all tests."""
        super().__init__(lambda test, what: self.receive((test, what)))
        self._line = line
        self._repeats = repeats
        self._lock = threading.RLock()
        self._is_over = False
        self._channels: list[Any] = []
        self._workers: set[str] = set()
        self._left: Counter[str] = Counter()
        self._timings: frozenset[str] = frozenset()
        self._count = 0
        self._running: dict[str, _RunningTest] = {}
        self._seconds = Durations()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the channel."""
        channel = node.gateway.newchannel()
        channel.setcallback(self.receive)
        self._channels.append(channel)  # one that nobody holds is closed
        node.workerinput[CHANNEL] = channel

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the names of the tests that this process runs."""
        self._collect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Take the names of the tests that a worker found."""
        with self._lock:
            self._workers.add(node.gateway.id)
        self._collect(ids)

    def _collect(self, ids: Sequence[str]) -> None:
        with self._lock:
            if not self._count or self._repeats:
                self._left.update(map(plain_name, ids))
                self._timings = frozenset(plain_name(test) for test in ids if test.endswith(f"@{TIMING_GROUP}"))
                self._count += len(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, Any, Any]:
        """Take a test that begins."""
        with self._put_away():
            result = yield
            self._running.setdefault(plain_name(nodeid), _RunningTest(time.monotonic()))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Take a test that ends."""
        with self._put_away():
            result = yield
            if report.when in _ENDS:
                self._end(plain_name(report.nodeid))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        """Let pytest write."""
        with self._put_away():
            return (yield)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the line away until another test begins or ends: pytest-xdist writes that a worker has died."""
        with self._lock:
            self._workers.discard(node.gateway.id)
            self.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Take the line away for good."""
        with self._lock:
            self._is_over = True
            self.clear()

    def receive(self, message: tuple[str, str | None]) -> None:
        """Take what a test does, or that others will take longer."""
        test, what = plain_name(message[0]), message[1]
        with self._lock:
            running = self._running.setdefault(test, _RunningTest(time.monotonic()))
            if what is None:
                running.is_usual = False
            else:
                running.what = what
                self._show()

    def clear(self) -> None:
        """Take the line away until something is shown again."""
        with self._lock:
            self._line.clear()

    @contextlib.contextmanager
    def _put_away(self) -> Generator[None]:
        """Let pytest write inside the block."""
        with self._lock:
            self.clear()
            yield
            self._show()

    def _end(self, test: str) -> None:
        self._left[test] -= 1
        running = self._running.pop(test, None)
        if running is not None and running.is_usual:
            self._seconds.add(kind_of(test), time.monotonic() - running.started)

    def _show(self) -> None:
        """Show the line, if a test runs."""
        if self._is_over or not self._running or not self._count:
            return
        left = +self._left
        head = f"fx: {self._count - left.total()} of {self._count} tests done{shown_rest(self._seconds_left(left))}"
        first, *others = sorted(self._running.items(), key=lambda entry: entry[1].started)
        parts = [with_name(head, name_of(first[0]), first[1].what)]
        parts += [": ".join(filter(None, (name_of(test), running.what))) for test, running in others]
        self._line.show("; ".join(parts))

    def _seconds_left(self, left: Counter[str]) -> float | None:
        """Return how long the rest will take: checks on all workers side by side, then timings on one."""
        tests = list(left.elements())
        checks = self._seconds.expected(kind_of(test) for test in tests if test not in self._timings)
        timings = self._seconds.expected(kind_of(test) for test in tests if test in self._timings)
        return None if checks is None or timings is None else checks / max(len(self._workers), 1) + timings


def shown_rest(left: float | None) -> str:
    """Return the words on how long the rest takes, if that is known and worth a word."""
    return f", about {shown_seconds(left)} left" if left is not None and left >= LEAST_LEFT else ""


def name_of(test: str) -> str:
    """Return the name of a test without its file and class.

    >>> name_of("tests/test_speed.py::TestNets::test_one[a::b]")
    'test_one[a::b]'
    """
    path, bracket, parameters = test.partition("[")
    return path.rpartition("::")[2] + bracket + parameters


def kind_of(test: str) -> str:
    """Return what tests are called that take about as long as ``test``: those of one function, or rows of one table."""
    function, _, parameters = name_of(test).partition("[")
    return f"{function} {parameters.partition(': ')[0] if ': ' in parameters else ''}"


def status_line_of(config: pytest.Config) -> StatusLine | None:
    """Return the line of a run whose terminal can show one: not in a pipe, nor on a CI server."""
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
