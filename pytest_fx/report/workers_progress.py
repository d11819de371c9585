"""What the workers of pytest-xdist do at the moment, in one line that the controller shows on a real terminal.

The controller hears from pytest-xdist which tests begin and end. What a test does between the two comes by a channel of
execnet's own, which a worker is given with its input.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_fx.options import OPTIONS
from pytest_fx.parallel.distribution import TIMING_GROUP, is_worker, plain_name
from pytest_fx.report.progress import (
    PROGRESS,
    Durations,
    LineProgress,
    SentProgress,
    StatusLine,
    kind_of,
    name_of,
    shown_rest,
    status_line_of,
    with_name,
)

CHANNEL = "fx_progress"
"""What the channel is called in the input of a worker, which has none where nothing is shown."""
_ENDS = ("teardown", "???")
"""The phase that a test ends with; the second one is that of a test whose worker has died."""


def open_progress(config: pytest.Config) -> None:
    """Show how far a run is, if it uses the plugin on a terminal; let a worker tell its controller."""
    if is_worker(config):
        channel = config.workerinput.get(CHANNEL)  # type: ignore[attr-defined]
        if channel is not None:
            config.stash[PROGRESS] = SentProgress(lambda test, what: _send(channel, test, what))
    elif config.stash[OPTIONS].used or config.getoption("fx_tables") is not None:
        line = status_line_of(config)
        if line is None:
            return
        if config.getoption("dist", "no") == "no":
            config.stash[PROGRESS] = LineProgress(line)
        else:
            config.pluginmanager.register(WorkersProgress(config, line), "fx-workers-progress")


def _send(channel: Any, test: str, what: str | None) -> None:
    with contextlib.suppress(OSError):  # the controller is gone
        channel.send((plain_name(test), what))


@dataclass(slots=True)
class _RunningTest:
    """A test that runs."""

    started: float
    """When it began, by ``time.monotonic()``."""
    what: str = ""
    """What it does, if it has told that."""
    is_usual: bool = True
    """Whether others of its kind take about as long."""


class WorkersProgress:
    """Shows how many tests are done, how long the others will take, and what those do that run, the longest first.

    Channels are read in threads of execnet's. A lock keeps them from writing while pytest does.
    """

    def __init__(self, config: pytest.Config, line: StatusLine) -> None:
        self._line = line
        self._repeats = config.getoption("dist", "no") == "each"
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Take the names of the tests."""
        with self._lock:
            self._workers.add(node.gateway.id)
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
            self._line.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Take the line away for good."""
        with self._lock:
            self._is_over = True
            self._line.clear()

    def receive(self, message: tuple[str, str | None]) -> None:
        """Take what a test does, or that others will take longer."""
        test, what = message
        with self._lock:
            running = self._running.setdefault(test, _RunningTest(time.monotonic()))
            if what is None:
                running.is_usual = False
            else:
                running.what = what
                self._show()

    @contextlib.contextmanager
    def _put_away(self) -> Generator[None]:
        """Let pytest write inside the block."""
        with self._lock:
            self._line.clear()
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
        first, *others = sorted(self._running.items(), key=lambda one: one[1].started)
        parts = [with_name(head, name_of(first[0]), first[1].what)]
        parts += [": ".join(filter(None, (name_of(test), running.what))) for test, running in others]
        self._line.show("; ".join(parts))

    def _seconds_left(self, left: Counter[str]) -> float | None:
        """Return how long the rest will take: checks on all workers side by side, then timings on one."""
        tests = list(left.elements())
        checks = self._seconds.expected(kind_of(test) for test in tests if test not in self._timings)
        timings = self._seconds.expected(kind_of(test) for test in tests if test in self._timings)
        return None if checks is None or timings is None else checks / max(len(self._workers), 1) + timings
