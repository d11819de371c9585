"""The plugin's test that runs now, on disk: if the process ends in it, the file remains and names it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_fx.lazy import load
from pytest_fx.options import options_of
from pytest_fx.records.reading import parsed

if sys.platform != "win32":
    import fcntl

FOLDER = ".pytest_fx"
"""The folder below pytest's root folder for the plugin's files."""
RUNNING = "running"
"""The folder in the plugin's with one file for each process that runs tests."""
REPORT = pytest.StashKey[Callable[..., None]]()
"""The key of the function by which a child process reports to its parent: a kind of message, and values."""
CURRENT = pytest.StashKey["Running"]()
"""The key of the file of a process that runs tests itself."""


def uses(item: pytest.Item, fixtures: Iterable[str]) -> bool:
    """Return whether a test uses one of ``fixtures``."""
    return not set(fixtures).isdisjoint(getattr(item, "fixturenames", ()))


def time_limit(item: pytest.Item, fixtures: Iterable[str]) -> float | None:
    """Return the seconds that a test with one of ``fixtures`` may run; None for no limit.

    A test on random programs has that time for each program.
    """
    limited = uses(item, fixtures) and not uses(item, ["fx_check_pass"])
    return options_of(item).longest if limited else None


def announce(config: pytest.Config, what: str) -> None:
    """Announce the next step of the test: applying a pass to a model, which may not return."""
    if (report := config.stash.get(REPORT, None)) is not None:
        report("doing", what)
    elif (running := config.stash.get(CURRENT, None)) is not None:
        running.note(what=what)


class Running:
    """The file of this process. It holds one line while a test runs, and is locked as long as the process lives.

    The line is not forced to the disk: it need only outlive the process, and this way costs some microseconds. If the
    system has no record locks, or the folder cannot be written, there is no file.
    """

    def __init__(self, root: Path) -> None:
        """``root`` is the root folder of the run; there is no file if this machine has no such folder."""
        self._path = root / FOLDER / RUNNING / f"{os.getpid()}.json"
        self._file: int | None = None
        self._opened = False
        self._entry: dict[str, Any] = {}

    def begin(self, test: str, what: str) -> None:
        """Record that ``test`` begins, with its step ``what``."""
        if not self._opened:
            self._opened = True
            with contextlib.suppress(OSError):
                self._file = self._open()
        self._entry = {"test": test, "what": what}
        self._write(json.dumps(self._entry).encode())

    @property
    def what(self) -> str:
        """Return the current step of the test."""
        return self._entry["what"]

    def note(self, **facts: Any) -> None:
        """Add or replace facts on the test."""
        self._entry.update(facts)
        self._write(json.dumps(self._entry).encode())

    def end(self) -> None:
        """Record that the test has ended."""
        self._write(b"")

    def finish(self) -> None:
        """Remove the file: the process ends in order."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                os.close(self._file)

    def _open(self) -> int | None:
        if sys.platform == "win32" or not self._path.parents[2].is_dir():
            return None
        load("pytest_fx.records.journal").ignore_in_git(self._path.parents[1])
        self._path.parent.mkdir(exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # of a file system without locks
            os.close(file)
            raise
        return file

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None and os.path.samestat(os.fstat(self._file), self._path.stat()):
                os.pwrite(self._file, line, 0)  # otherwise a pass has closed it, and the number may be another file's
                os.ftruncate(self._file, len(line))


def unfinished(root: Path, test: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the recorded facts, ``test`` and ``what`` among them, of each test in which a process ended; each once.

    If ``test`` is not None, yield those of this test alone.
    """
    for path in sorted((root / FOLDER / RUNNING).glob("*.json")):
        if sys.platform == "win32":
            return
        with contextlib.suppress(OSError), path.open("r+") as file:  # a living process has it locked
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            entry = parsed(file.read())
            if test is not None and (entry is None or entry.get("test") != test):
                continue
            path.unlink()
            if entry is not None and {"test", "what"} <= entry.keys():
                yield entry
