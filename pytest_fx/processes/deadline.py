"""A limit on how long a block may run, for code that may never return."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_BETWEEN_LOOKS = 0.05
"""Seconds between two looks at the clock."""
AGAIN = 2.0
"""Seconds after which the error is raised again in a block that goes on: Python ignores exceptions in callbacks of weak
references and in destructors."""
PATIENCE = 4.0
"""The factor by which a block may exceed its time by the clock if it has computed less: others may run."""
GRACE = 5.0
"""Seconds after which an interrupted block that goes on counts as stuck."""


class TookTooLong(BaseException):
    """Raised in a block that exceeds its time. No ``except Exception`` in it can catch this."""


class Watchdog:
    """Interrupts blocks of code that run for too long, in the thread that created it.

    A second thread watches the clock, and raises :class:`TookTooLong` in the block at its next step of Python. So it
    works in any thread, beside signals of other code, and costs a block nothing. But a call that waits outside of
    Python, such as ``time.sleep``, is not interrupted before it returns.

    >>> with Watchdog() as watchdog, watchdog.limit(5.0):
    ...     total = sum(range(10))
    >>> total
    45
    """

    def __init__(
        self, error: type[BaseException] = TookTooLong, stuck: Callable[[FrameType | None], None] | None = None
    ) -> None:
        """``error`` is raised; ``stuck`` is called with the frame of a block that goes on for :data:`GRACE` then."""
        self._error = error
        self._stuck = stuck
        self._stuck_from = float("inf")
        self._until = self._waits_until = self._computed_until = float("inf")
        self._interrupted = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watched = threading.get_ident()

    def __enter__(self) -> Watchdog:
        # started here: since Python 3.13 a thread created before os.fork does not start in the copy
        self._closed = threading.Event()
        arguments = (self._closed,)
        threading.Thread(target=self._watch, args=arguments, name="pytest-fx watchdog", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()

    @contextmanager
    def limit(self, seconds: float, *, computing: bool = False) -> Generator[None]:
        """Raise the error inside the block if it runs for longer than ``seconds``.

        With ``computing`` these are seconds of a processor, or :data:`PATIENCE` times as many by the clock.
        """
        now, self._interrupted = time.monotonic(), False
        self._computed_until = time.process_time() + seconds if computing else float("-inf")
        self._until, self._waits_until = now + seconds, now + (PATIENCE if computing else 1.0) * seconds
        raised = False
        try:
            yield
        except self._error as error:
            raised = True
            if (interrupt := _interrupt_before(error)) is not None:
                raise interrupt from None  # Ctrl-C ended a wait outside of Python, and ends the run
            raise
        finally:
            with self._lock:
                self._until = self._stuck_from = float("inf")
            if self._interrupted and not raised:
                self._send(None)  # cancel an error not raised yet; without one, CPython 3.11 spins

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(_BETWEEN_LOOKS):
            with self._lock:
                now = time.monotonic()
                if now > self._until and (time.process_time() > self._computed_until or now > self._waits_until):
                    if not self._interrupted:
                        self._interrupted, self._stuck_from = True, now + GRACE
                    self._until = now + AGAIN
                    self._send(self._error)
                if now > self._stuck_from and self._stuck is not None:
                    self._stuck_from = float("inf")
                    self._stuck(sys._current_frames().get(self._watched))

    def _send(self, error: type[BaseException] | None) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._watched), None if error is None else ctypes.py_object(error)
        )


def _interrupt_before(error: BaseException) -> KeyboardInterrupt | None:
    """Return the ``KeyboardInterrupt`` that was being handled when ``error`` took its place."""
    raised: BaseException | None = error
    while raised is not None and not isinstance(raised, KeyboardInterrupt):
        raised = raised.__context__
    return raised
