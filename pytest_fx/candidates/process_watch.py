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
from typing import Any, TypeVar

from pytest_fx.harness.process import ProcessState, has_children

_LISTINGS = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"})
"""Audit events of functions that return objects of the rest of the process, such as those of the judge."""
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
    """The changes of a process since a moment, and the use of functions that list the objects of others."""

    def __init__(self) -> None:
        """Begin to watch, in the calling thread."""
        self._state, self._threads = ProcessState.now(), _thread._count()
        self._listings: dict[str, None] = {}
        self._is_calling = False
        sys.addaudithook(self._note)

    def _note(self, event: str, _: Any) -> None:
        if self._is_calling and event in _LISTINGS:
            self._listings[event] = None

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
        if _thread._count() > self._threads:  # those started below `threading`, too, but none of native code
            sentences.append("a thread is still running")
        if has_children():
            sentences.append("a process that it started is still there")
        return sentences


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
