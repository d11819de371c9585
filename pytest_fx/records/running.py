"""Which test of the plugin runs now, on disk: what is left there names it when the process has ended in it."""

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
"""Folder below pytest's root folder for what the plugin writes."""
RUNNING = "running"
"""Folder, in that of the plugin, with a file of each process that runs tests."""
REPORT = pytest.StashKey[Callable[..., None]]()
"""Where the :class:`pytest.Config` of a child process keeps how to report to its parent: what, and more of it."""
CURRENT = pytest.StashKey["Running"]()
"""Where that of a process that runs tests itself keeps the file of it."""


def uses(item: pytest.Item, fixtures: Iterable[str]) -> bool:
    """Return whether a test asks for one of ``fixtures``."""
    return not set(fixtures).isdisjoint(getattr(item, "fixturenames", ()))


def time_limit(item: pytest.Item, fixtures: Iterable[str]) -> float | None:
    """Return how many seconds a test may run that asks for one of ``fixtures``; None for any.

    One that tries a pass on random programs has that time for each of them.
    """
    limited = uses(item, fixtures) and not uses(item, ["fx_check_pass"])
    return options_of(item).longest if limited else None


def announce(config: pytest.Config, what: str) -> None:
    """Say what the test is about to do: apply a pass to a model, which may not return."""
    if (report := config.stash.get(REPORT, None)) is not None:
        report("doing", what)
    elif (running := config.stash.get(CURRENT, None)) is not None:
        running.note(what=what)


class Running:
    """The file of this process. It holds one line while a test runs, and is locked as long as the process lives.

    The line is not forced to the disk: it outlives the process, which is all that is asked of it, and costs some
    microseconds. Where the system has no record locks, or the folder cannot be written, there is no file.
    """

    def __init__(self, root: Path) -> None:
        """``root`` is the root folder of the run; there is no file if this machine has no such folder."""
        self._path = root / FOLDER / RUNNING / f"{os.getpid()}.json"
        self._file: int | None = None
        self._opened = False
        self._entry: dict[str, Any] = {}

    def begin(self, test: str, what: str) -> None:
        """Note that ``test`` begins, which does ``what``."""
        if not self._opened:
            self._opened = True
            with contextlib.suppress(OSError):
                self._file = self._open()
        self._entry = {"test": test, "what": what}
        self._write(json.dumps(self._entry).encode())

    @property
    def what(self) -> str:
        """Return what the test does."""
        return self._entry["what"]

    def note(self, **facts: Any) -> None:
        """Note more of the test, or other things."""
        self._entry.update(facts)
        self._write(json.dumps(self._entry).encode())

    def end(self) -> None:
        """Note that the test has ended."""
        self._write(b"")

    def finish(self) -> None:
        """Remove the file: all has ended well."""
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
                os.pwrite(self._file, line, 0)  # else a pass has closed it, and the number may be another file's
                os.ftruncate(self._file, len(line))


def unfinished(root: Path, test: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield ``test``, ``what`` and what else was noted of each test in which a process ended; each once.

    If a ``test`` is given, it is of that one alone.
    """
    for path in sorted((root / FOLDER / RUNNING).glob("*.json")):
        if sys.platform == "win32":
            return
        with contextlib.suppress(OSError), path.open("r+") as file:  # a process that lives has it locked
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            entry = parsed(file.read())
            if test is not None and (entry is None or entry.get("test") != test):
                continue
            path.unlink()
            if entry is not None and {"test", "what"} <= entry.keys():
                yield entry
