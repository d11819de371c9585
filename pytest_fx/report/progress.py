"""What a run does at the moment and how long it will take, in a line below pytest's own on a real terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

PROGRESS = pytest.StashKey["Progress"]()
"""Where the :class:`pytest.Config` of a run on a terminal keeps its line."""
LEAST_LEFT = 5.0
"""Seconds below which it is not said how long the rest of a run will take."""


def shown_seconds(seconds: float) -> str:
    """Return a time in the unit that reads best.

    >>> shown_seconds(42.3), shown_seconds(200), shown_seconds(7300)
    ('42 s', '3 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """The line: which test runs, how many there are, what it does, and how long that and the rest will take.

    It is written to the terminal itself, past what pytest captures, and taken away before pytest writes.
    """

    def __init__(self, write: Callable[[str], object], column: Callable[[], int]) -> None:
        """``write`` writes to the terminal, and ``column`` says how much of its line pytest has written."""
        self._write = write
        self._column = column
        self._shown = False
        self._kinds: Sequence[str] = ()
        self._positions: dict[str, int] = {}
        self._position = 0
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._test = ""
        self._searched = 0.0
        self._is_usual = True

    @contextmanager
    def of(self, item: pytest.Item) -> Generator[None]:
        """Take the time of a test inside the block; its line is shown where :meth:`show_test` is called."""
        if not self._kinds:
            self._kinds = [_kind(one) for one in item.session.items]
            self._positions = {one.nodeid: position for position, one in enumerate(item.session.items)}
        self._position = self._positions.get(item.nodeid, 0)
        started = time.monotonic()
        left = self.seconds_left()
        what, name = _row(item)
        self._test = f"fx: {what} {self._position + 1} of {len(self._kinds)}{_rest(left)}: {name}"
        self._is_usual = True
        try:
            yield
        finally:
            if self._is_usual:
                self._seconds[_kind(item)].append(time.monotonic() - started)
            self.clear()

    def expect_longer(self) -> None:
        """Do not expect that others take as little time as the test that runs, which has nothing to do."""
        self._is_usual = False

    def show_test(self) -> None:
        """Show which test runs, until :meth:`clear`."""
        self.show(self._test)

    def doing(self, what: str) -> None:
        """Add what the test does now."""
        self.show(f"{self._test}: {what}")

    def show_program(self, number: int, count: int | None) -> None:
        """Add which of ``count`` random programs the test tries, or that it makes one smaller, if that is None."""
        if count is None:
            return self.doing(f"program {number} breaks a law; making it smaller")
        now = time.monotonic()
        if number == 1:
            self._searched = now
        left = (now - self._searched) / (number - 1) * (count - number + 1) if number > 1 else None
        self.doing(f"program {number} of {count}{_rest(left)}")

    def seconds_left(self) -> float | None:
        """Return how long the rest will take if tests take as long as others of their kind did, or as others at all."""
        known = {kind: sum(taken) / len(taken) for kind, taken in self._seconds.items()}
        if not known:
            return None
        usual = sum(map(sum, self._seconds.values())) / sum(map(len, self._seconds.values()))
        return sum(known.get(kind, usual) for kind in self._kinds[self._position :])

    def show(self, text: str) -> None:
        """Show ``text`` in the line below that of pytest, cut to the width of the terminal."""
        width = shutil.get_terminal_size().columns
        text = text if len(text) < width else f"{text[: width - 3]} …"
        self._write(f"\n\x1b[2K{text}\x1b[1A\x1b[{self._column() + 1}G")
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._write(f"\n\x1b[2K\x1b[1A\x1b[{self._column() + 1}G")
            self._shown = False


def _rest(left: float | None) -> str:
    """The words on how long the rest takes, if that is known and worth a word."""
    return f", about {shown_seconds(left)} left" if left is not None and left >= LEAST_LEFT else ""


def _row(item: pytest.Item) -> tuple[str, str]:
    """Return what a test is called on the line, and its name: a row of a table has that of the row."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if {"table", "row"} <= parameters.keys():
        return "row", f"{parameters['table'].name}: {parameters['row'].name}"
    return "test", item.name


def _kind(item: pytest.Item) -> str:
    """Return what tests are called that take about as long as ``item``: those of one function, or rows of one table."""
    return f"{getattr(item, 'originalname', item.name)} {item.name.partition(': ')[0] if ': ' in item.name else ''}"


def progress_of(config: pytest.Config) -> Progress | None:
    """Return the line of a run whose terminal can show one: not in a pipe, on a CI server or beside other workers."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    beside = hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None)
    if reporter is None or beside or not reporter.isatty or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return None
    terminal = os.dup(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    config.add_cleanup(lambda: os.close(terminal))
    owner = os.getpid()

    def write(text: str) -> None:
        if os.getpid() == owner:  # a child of --fx-isolate does not know where pytest writes
            with contextlib.suppress(OSError):
                os.write(terminal, text.encode())

    return Progress(write, lambda: config.get_terminal_writer().width_of_current_line)
