"""A limit on how long a block may run, for code that may never return."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType


class TookTooLong(BaseException):
    """Raised in a block that has run for longer than it may. No ``except Exception`` in it can catch this."""


class Deadline:
    """Raise :class:`TookTooLong` inside the block if it runs for longer than ``seconds``.

    A thread waits for the time to pass and then raises in the thread that runs the block, at its next step of Python.
    So it works in any thread and beside signals that others set; but what waits outside of Python, as ``time.sleep``
    does, is not interrupted before it returns.

    >>> with Deadline(5.0):
    ...     total = sum(range(10))
    >>> total
    45
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._thread = 0
        self._over = self._interrupted = False

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
        if self._interrupted and kind is not TookTooLong:
            self._send(None)  # not raised yet, and no longer wanted

    def _interrupt(self) -> None:
        with self._lock:
            if not self._over:
                self._interrupted = True
                self._send(TookTooLong)

    def _send(self, error: type[BaseException] | None) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread), None if error is None else ctypes.py_object(error)
        )
