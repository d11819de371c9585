"""Exceptions that the traced code handles: one that capture itself causes is refused, one at run time is reported.

Traced values cause exceptions that concrete ones would not (``range(x.shape[0])``). If the traced code handles one and
continues, the trace follows another path than eager code. And an operation that raises nothing while it is traced may
raise when the program runs. The traced code would then continue after its ``except``; a captured program has none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, TypeVar

from fx.bytecode.values import handled_at
from fx.capture.misuse import misuse
from fx.capture.patching import Trace
from fx.errors import TraceError
from fx.proxy import TracerBase

T = TypeVar("T")


_monitoring: Any = getattr(sys, "monitoring", None)
"""Python's monitoring, which reports exceptions without a call for each function; from Python 3.12 on."""
_FREE_TOOLS = (3, 4)
"""The tool ids that Python reserves for nobody."""
_lock = threading.RLock()
_monitored: list[HandledExceptions] = []
"""The watchers that exceptions of all threads are reported to; an ended one may remain after a signal."""
_tools: list[int] = []
"""The tool id that is in use."""


class HandledExceptions:
    """The exceptions of a trace that functions handle."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        """Watch functions that handle exceptions, whose codes ``fx.bytecode.values.handling`` returns."""
        self._codes = {id(code): code for code in codes}
        self._trace: Trace | None = None
        self._tracer: TracerBase | None = None
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._thread = threading.get_ident()
        self._watching: Any = None
        """The function that Python calls while it watches."""

    def watch(self, trace: Trace, tracer: TracerBase, called: Callable[..., T], args: list[Any]) -> T:
        """Return ``called(*args)``; ``tracer`` refuses the program if it handles an exception of traced values.

        If a debugger traces the functions of this thread, nothing is watched. A debugger that starts meanwhile stays.
        """
        if _monitoring is not None and self._is_monitored(trace, tracer):
            try:
                return called(*args)
            finally:
                self._trace = None
                forget_ended()
        outer = sys.gettrace()
        if outer is not None and not isinstance(getattr(outer, "__self__", None), HandledExceptions):
            return called(*args)
        self._trace, self._tracer = trace, tracer
        self._watching = self._function_called
        sys.settrace(self._watching)
        try:
            return called(*args)
        finally:
            if sys.gettrace() in (self._watching, None):
                sys.settrace(outer)
            self._watching = None

    def _is_monitored(self, trace: Trace, tracer: TracerBase) -> bool:
        """Let Python's monitoring report exceptions, if it has a free tool id. Return whether it has."""
        self._trace, self._tracer = trace, tracer
        with _lock:
            _monitored.append(self)
            _monitor()
            return bool(_tools)

    def is_watching(self) -> bool:
        """Return whether the watched trace is running."""
        return self._trace is not None and self._trace.is_running()

    def note(self, code: CodeType, error: BaseException) -> None:
        """Keep an exception that is raised in ``code``, or passes through it, if a traced value causes it."""
        if id(code) in self._codes and self._thread == threading.get_ident() and self.is_watching():
            self._raised_here(error, error.__traceback__)

    def pause(self) -> bool:
        """Stop watching when the tracer's own code begins, since each step of it would take several times as long.

        Returns:
            True if it has stopped: then :meth:`resume` starts again.
        """
        # later versions instrument all code again for it
        if self._watching is not None and _monitoring is None and sys.gettrace() is self._watching:
            sys.settrace(None)
            return True
        return False

    def resume(self) -> None:
        """Watch again, unless a debugger has started meanwhile."""
        if sys.gettrace() is None:
            sys.settrace(self._watching)

    def resumed(self, called: Callable[..., T]) -> Callable[..., T]:
        """Wrap ``called``, a part of the traced code, so that it is watched but the tracer's code around it is not."""

        def watched(*args: Any, **kwargs: Any) -> T:
            self.resume()
            try:
                return called(*args, **kwargs)
            finally:
                self.pause()

        return watched

    def _function_called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._trace is None or not self._trace.is_running():  # a signal handler has prevented the removal
            sys.settrace(None)
        elif id(frame.f_code) in self._codes:
            frame.f_trace_lines = False
            return self._raised
        return None

    def _raised(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception":
            self._raised_here(argument[1], argument[2])
        return self._raised

    def _raised_here(self, error: Any, traceback: Any) -> None:
        """Keep an exception that a traced value causes: if the trace reaches its end, the exception was handled."""
        if self._tracer is not None and self._tracer._state.refused is None:
            self._tracer._state.refused = error if isinstance(error, TraceError) else misuse(error, traceback)

    def names_at(self, frame: FrameType) -> list[str]:
        """Return the names of the classes of exceptions that the traced code handles at the place of ``frame``."""
        all_names: list[str] = []
        current: FrameType | None = frame
        while current is not None and current.f_code is not _WATCH:
            code = current.f_code
            if id(code) in self._codes:
                place = id(code), current.f_lasti
                names = self._names.get(place)
                if names is None:
                    names = self._names[place] = handled_at(current)
                all_names += names
            current = current.f_back
        return all_names


_WATCH = HandledExceptions.watch.__code__
"""The code of the function that calls the traced code."""


def forget_ended() -> None:
    """Stop reporting exceptions if no watched trace is running."""
    if _monitored or _tools:
        with _lock:
            _monitor()


def _monitor() -> None:
    """Under the lock, take a tool id of Python's monitoring if a trace is watched, and free it if none is."""
    _monitored[:] = [watcher for watcher in _monitored if watcher.is_watching()]
    if _monitored and not _tools:
        _tools.extend([tool for tool in _FREE_TOOLS if _monitoring.get_tool(tool) is None][:1])
        for tool in _tools:
            _monitoring.use_tool_id(tool, "fx")
            _monitoring.register_callback(tool, _monitoring.events.RAISE, _report)
            _monitoring.set_events(tool, _monitoring.events.RAISE)
    elif not _monitored:
        for tool in _tools:
            if _monitoring.get_tool(tool) == "fx":
                _monitoring.set_events(tool, 0)
                _monitoring.register_callback(tool, _monitoring.events.RAISE, None)
                _monitoring.free_tool_id(tool)
        _tools.clear()


def _report(code: CodeType, offset: int, error: BaseException) -> None:
    for watcher in list(_monitored):
        watcher.note(code, error)
