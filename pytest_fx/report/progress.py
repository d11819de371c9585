"""What a run does at the moment and how long it will take, in a line below pytest's own on a real terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

PROGRESS = pytest.StashKey["Progress"]()
"""Where the :class:`pytest.Config` of a run on a terminal, of its workers and of its child processes keeps theirs."""
LEAST_LEFT = 5.0
"""Seconds below which it is not said how long the rest of a run will take."""
LEAST_NAME = 12
"""Characters that the name of a test is cut to at most, where the line is too long for the terminal."""


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
    """Takes what the test that runs tells of itself; this one shows it nowhere."""

    _searched = 0.0

    def of(self, item: pytest.Item) -> AbstractContextManager[None]:
        """Return the context in which ``item`` runs."""
        return nullcontext()

    def doing(self, what: str) -> None:
        """Take what the test does now."""

    def expect_longer(self) -> None:
        """Do not expect that others take as little time as the test that runs, which has nothing to do."""

    def show_test(self) -> None:
        """Show which test runs, until :meth:`clear`."""

    def clear(self) -> None:
        """Take away what is shown."""

    def show_program(self, number: int, count: int | None) -> None:
        """Take which of ``count`` random programs the test tries, or that it makes one smaller, if that is None."""
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


class LineProgress(Progress):
    """Shows which test runs, how many there are, what it does, and how long that and the rest will take."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._kinds: Sequence[str] = ()
        self._positions: dict[str, int] = {}
        self._position = 0
        self._seconds = Durations()
        self._head = self._name = ""
        self._is_usual = True

    @contextmanager
    def of(self, item: pytest.Item) -> Generator[None]:
        """Take the time of a test inside the block; its line is shown where :meth:`show_test` is called."""
        if not self._kinds:
            self._kinds = [kind_of(one.nodeid) for one in item.session.items]
            self._positions = {one.nodeid: position for position, one in enumerate(item.session.items)}
        self._position = self._positions.get(item.nodeid, 0)
        started = time.monotonic()
        left = self._seconds.expected(self._kinds[self._position :])
        what, self._name = _row(item)
        self._head = f"fx: {what} {self._position + 1} of {len(self._kinds)}{shown_rest(left)}"
        self._is_usual = True
        try:
            yield
        finally:
            if self._is_usual:
                self._seconds.add(kind_of(item.nodeid), time.monotonic() - started)
            self.clear()

    def expect_longer(self) -> None:
        """Do not expect that others take as little time as the test that runs, which has nothing to do."""
        self._is_usual = False

    def show_test(self) -> None:
        """Show which test runs, until :meth:`clear`."""
        self._line.show(with_name(self._head, self._name))

    def doing(self, what: str) -> None:
        """Add what the test does now."""
        self._line.show(with_name(self._head, self._name, what))

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()


class SentProgress(Progress):
    """Sends what a test tells of itself to the process that shows it: from a worker, or from a child process.

    That process knows itself when a test begins, and when pytest writes.
    """

    def __init__(self, send: Callable[[str, str | None], object]) -> None:
        """``send`` is called with the name of a test and what it does, or None where others will take longer."""
        self._send = send
        self._test = ""

    @contextmanager
    def of(self, item: pytest.Item) -> Generator[None]:
        """Send what is told inside the block with the name of ``item``."""
        self._test = item.nodeid
        yield

    def doing(self, what: str) -> None:
        """Send what the test does now."""
        self._send(self._test, what)

    def expect_longer(self) -> None:
        """Send that others take longer than the test that runs."""
        self._send(self._test, None)


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


def shown_rest(left: float | None) -> str:
    """Return the words on how long the rest takes, if that is known and worth a word."""
    return f", about {shown_seconds(left)} left" if left is not None and left >= LEAST_LEFT else ""


def _row(item: pytest.Item) -> tuple[str, str]:
    """Return what a test is called on the line, and its name: a row of a table has that of the row."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if {"table", "row"} <= parameters.keys():
        return "row", f"{parameters['table'].name}: {parameters['row'].name}"
    return "test", item.name


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
