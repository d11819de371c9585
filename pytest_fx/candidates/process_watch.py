"""The side effects of a subject on its process, and a call without the signs of a test.

A candidate may be right only where it sees that it is judged. It may look at its callers, at living objects, at the
environment or at the imported modules. Its calls run on a thread without frames of the judge (:class:`Caller`).
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import torch

from pytest_fx.harness.process import ProcessState, has_children

_LISTINGS = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"})
"""Audit events of functions that return objects of the rest of the process, such as those of the judge."""
_STARTS_OF_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_STARTS_OF_PROCESSES = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"})
"""Audit events of the functions that start processes."""
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OF_TESTS = frozenset({"pytest_fx", "pytest", "_pytest"})
"""Packages whose presence among the imported modules is a sign of a test."""
Result = TypeVar("Result")


class Caller:
    """A thread that calls a subject. No frame of the judge is on the stack of the subject."""

    def __init__(self) -> None:
        """Start the thread."""
        self._thread = ThreadPoolExecutor(1)
        self.do(lambda: None)

    def do(self, work: Callable[[], Result]) -> Result:
        """Run the judge's own work on the thread, whose settings torch may keep apart from those of other threads."""
        return self._thread.submit(work).result()

    def call_each(
        self, calls: Iterable[partial[Any]], take: Callable[[Any], object], fail: Callable[[BaseException], object]
    ) -> None:
        """Make each call in turn; give its result to ``take``, or the exception of either to ``fail``.

        The loop over the calls runs in C, as functions of the standard library.
        """
        results: Iterator[Any] = map(take, map(partial.__call__, calls))
        drop: deque[Any] = deque(maxlen=0)
        while True:
            try:
                self._thread.submit(drop.extend, results).result()
                return
            except BaseException as error:  # the iterator goes on behind the failed call
                fail(error)


class ProcessWatch:
    """The changes of a process since a moment, and the use of functions that list the objects of others.

    Threads and processes that torch itself starts are no changes: a compiler of torch starts its workers at first use.
    """

    def __init__(self) -> None:
        """Begin to watch, in the calling thread."""
        self._state, self._threads = ProcessState.now(), _thread._count()
        self._listings: dict[str, None] = {}
        self._threads_of_torch = self._processes_of_torch = self._other_processes = 0
        self._is_calling = False
        sys.addaudithook(self._note)

    def _note(self, event: str, _: Any) -> None:
        if self._is_calling and event in _LISTINGS:
            self._listings[event] = None
        elif event in _STARTS_OF_THREADS:
            self._threads_of_torch += _is_called_by_torch(sys._getframe(1))
        elif event in _STARTS_OF_PROCESSES:
            is_of_torch = _is_called_by_torch(sys._getframe(1))
            self._processes_of_torch += is_of_torch
            self._other_processes += not is_of_torch

    @contextlib.contextmanager
    def calling(self) -> Generator[None]:
        """Note functions that list objects during the block, in which a subject is called."""
        self._is_calling = True
        try:
            yield
        finally:
            self._is_calling = False

    def changes(self) -> list[str]:
        """Return a sentence on each change."""
        sentences = self._state.changes()
        sentences += [f"it calls {name}, which returns objects of the judge" for name in self._listings]
        # those started below `threading`, too, but none of native code
        if _thread._count() > self._threads + self._threads_of_torch:
            sentences.append("a thread is still running")
        if has_children() and (self._other_processes or not self._processes_of_torch):
            sentences.append("a process that it started is still there")
        return sentences


def _is_called_by_torch(frame: FrameType | None) -> bool:
    """Return whether the innermost caller outside of the standard library is code of torch."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)


@contextlib.contextmanager
def without_signs_of_a_test() -> Generator[None]:
    """Hide environment variables, command-line arguments and modules of test tools during the block."""
    variables, arguments = dict(os.environ), sys.argv
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _OF_TESTS}
    try:
        os.environ.clear()
        sys.argv = [""]
        for name in modules:
            del sys.modules[name]
        yield
    finally:
        sys.modules.update(modules)
        sys.argv = arguments
        os.environ.update(variables)
