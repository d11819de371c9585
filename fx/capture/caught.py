"""Exceptions that the traced code handles: one that capture itself causes is refused, one at run time is reported.

Traced values cause exceptions that concrete ones would not (``range(x.shape[0])``). Where the traced code handles one
and goes on, the trace is that of another course. And what raises nothing while it is traced may do so when it runs,
where the traced code would have gone on behind its ``except``; a captured program has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from fx.capture.misuse import misuse
from fx.capture.patching import Trace
from fx.checks.handlers import SUPPRESS, handled_at
from fx.errors import TraceError
from fx.frames import callers

T = TypeVar("T")


class Recorder(Protocol):
    """The tracer whose trace is watched."""

    _refused: TraceError | None


class Caught:
    """What functions that handle exceptions do with those of a trace."""

    def __init__(self, codes: Iterable[CodeType], managers: Mapping[str, tuple[str, ...]] = SUPPRESS) -> None:
        """Watch functions.

        Args:
            codes: those of functions that handle exceptions, as ``fx.checks.handlers.handling`` finds them.
            managers: what context managers that swallow exceptions are called in these.
        """
        self._codes = {id(code): code for code in codes}
        self._managers = managers
        self._trace: Trace | None = None
        self._tracer: Recorder | None = None

    def __bool__(self) -> bool:
        return bool(self._codes)

    def watch(self, trace: Trace, tracer: Recorder, called: Callable[..., T], args: list[Any]) -> T:
        """Return ``called(*args)``; ``tracer`` refuses it if traced values made it raise what it handled.

        Where a debugger traces the functions of this thread, it is not watched. One that starts meanwhile stays.
        """
        outer = sys.gettrace()
        if not self._codes or (outer is not None and not isinstance(getattr(outer, "__self__", None), Caught)):
            return called(*args)
        self._trace, self._tracer = trace, tracer
        sys.settrace(self._function_called)
        try:
            return called(*args)
        finally:
            if sys.gettrace() in (self._function_called, None):
                sys.settrace(outer)

    def _function_called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._trace is None or not self._trace.is_running():  # a signal's handler kept it from being taken away
            sys.settrace(None)
        elif id(frame.f_code) in self._codes:
            frame.f_trace_lines = False
            return self._raised
        return None

    def _raised(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Keep an exception that a traced value causes: if the trace goes on to its end, it was handled."""
        tracer = self._tracer
        if event == "exception" and tracer is not None and tracer._refused is None:
            error = argument[1]
            tracer._refused = error if isinstance(error, TraceError) else misuse(error, argument[2])
        return self._raised

    def names_at(self, frame: FrameType) -> list[str]:
        """The names of the classes of exceptions that the traced code handles at the place where ``frame`` is."""
        frames = [one for one in (frame, *callers(frame)) if id(one.f_code) in self._codes]
        return [name for one in frames for name in handled_at(one, self._managers)]
