"""Turns on a machine: the processes of one run check side by side, and each times alone."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class MachineLock:
    """A lock that any number of processes of a run share, or one of them holds alone, on one machine.

    It is a record lock on a byte of a file in the system's folder for temporary files. The byte depends on the run, so
    that runs do not wait for each other, not even one inside the other; the file is the user's and stays. The system
    gives the lock up when a process ends, however it ends, and children do not inherit it. A process that waits holds
    nothing, so nobody waits in a circle. Raises :class:`OSError` where no such file can be made.

    >>> lock = MachineLock("a run")
    >>> with lock.turn(alone=True):
    ...     pass
    """

    def __init__(self, run: str) -> None:
        if sys.platform == "win32":
            raise OSError("this system has no record locks")
        self._byte = int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "big")
        path = Path(tempfile.gettempdir(), f"pytest-fx-{os.getuid()}.lock")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def acquire(self, *, alone: bool) -> None:
        """Wait until no process of the run holds the lock, or until none holds it alone, and take it so."""
        if sys.platform != "win32":
            fcntl.lockf(self._file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, self._byte)

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if sys.platform != "win32":
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Generator[None]:
        """Hold the lock inside the block."""
        self.acquire(alone=alone)
        try:
            yield
        finally:
            self.release()
