"""Tests in the process of pytest itself: the current test is recorded on disk, and its time can be limited."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_fx.collection import subject_of
from pytest_fx.lazy import load
from pytest_fx.parallel.distribution import is_worker, root_of_run
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.records.running import CURRENT, Running, time_limit, unfinished, uses
from pytest_fx.tracebacks import users_line, users_place

_ISOLATE = "run with --fx-isolate, where a pass that ends or blocks its process fails one test, with the reason"


class OutOfTime(BaseException):
    """Raised in a test that has run out of time. No ``except Exception`` in it can catch this."""


class WatchedRun:
    """Records the plugin's test that runs, and ends it when its time is over."""

    def __init__(self, config: pytest.Config, fixtures: Iterable[str]) -> None:
        """``fixtures`` are the names of the plugin's."""
        self._fixtures = frozenset(fixtures)
        self._running = config.stash[CURRENT] = Running(root_of_run(config))
        self._until = 0.0
        self._terminal = os.dup(2)  # before pytest captures it
        config.add_cleanup(lambda: os.close(self._terminal))
        config.add_cleanup(self._running.finish)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the test while it runs."""
        if not uses(item, self._fixtures):
            return (yield)
        self._running.begin(item.nodeid, subject_of(item))
        self._until = time.monotonic() + (time_limit(item, self._fixtures) or 0.0)
        try:
            return (yield)
        finally:
            self._running.end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Limit the time of a test's set-up, such as the capture of a model."""
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Limit the time of the test to the rest of its limit."""
        with self._limited(item):
            return (yield)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Generator[None]:
        seconds = time_limit(item, self._fixtures)
        if seconds is None:
            yield
            return

        def report(frame: FrameType | None) -> None:
            self._report_hang(item, seconds, frame)

        try:
            with Watchdog(OutOfTime, report) as watchdog, watchdog.limit(self._until - time.monotonic()):
                yield
        except OutOfTime as error:
            exceeded: Exception = load("pytest_fx.errors").TimeLimitExceeded(
                f"{self._running.what} ran longer than {seconds:g} s",
                where=users_line(error),
                why="its time was over, by --fx-timeout, and it was interrupted",
                remedy="give it longer with --fx-timeout, or find what it waits for",
            )
            raise exceeded.with_traceback(error.__traceback__) from None

    def _report_hang(self, item: pytest.Item, seconds: float, frame: FrameType | None) -> None:
        """Report a hang to the terminal, which pytest does not capture here, and in the record of the running test."""
        stack = traceback.extract_stack(frame)[::-1]
        where = users_place((part.filename, part.lineno or 0, part.name) for part in stack)
        self._running.note(hangs=f"ran longer than {seconds:g} s")
        lines = [
            f"fx: {self._running.what} ran longer than {seconds:g} s, and cannot be interrupted",
            f"  where  {where or item.nodeid}",
            "  why    it waits or computes outside of Python, or catches what interrupts it",
            f"  try    {_ISOLATE}",
        ]
        os.write(self._terminal, ("\n" + "\n".join(lines) + "\n").encode())


def tell_of_the_last_run(config: pytest.Config) -> None:
    """Write a warning, once, on each test during which the process of an earlier run ended."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if is_worker(config) or reporter is None:
        return
    for entry in unfinished(config.rootpath):
        hung = f", which {entry['hangs']}" if "hangs" in entry else ""
        reporter.write_line(f"fx: the last run ended during {entry['test']}: {entry['what']}{hung}", yellow=True)
        reporter.write_line(f"  try    {_ISOLATE}", yellow=True)


def explain_crash(test: str, report: pytest.TestReport, root: Path) -> None:
    """Add the last step and a remedy to the report on a test in which a worker of pytest-xdist ended."""
    for entry in unfinished(root, test):
        report.longrepr = f"{report.longrepr}\n  value  {entry['what']}\n  try    {_ISOLATE}"
