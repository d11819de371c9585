"""Exceptions that the traced code handles: one that capture itself causes is refused, one at run time is reported.

Traced values cause exceptions that concrete ones would not (``range(x.shape[0])``). Where the traced code handles one
and goes on, the trace is that of another course. And what raises nothing while it is traced may do so when it runs,
where the traced code would have gone on behind its ``except``; a captured program has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from fx.capture.misuse import misuse
from fx.capture.patching import Trace
from fx.checks.handlers import handled_at
from fx.errors import TraceError
from fx.frames import callers

T = TypeVar("T")


class Recorder(Protocol):
    """The tracer whose trace is watched."""

    _refused: TraceError | None


_TOGGLES = sys.version_info < (3, 12)
"""Whether watching can be left and taken up again at little cost: later versions instrument all code anew for it."""


class Caught:
    """What functions that handle exceptions do with those of a trace."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        """``codes`` are those of functions that handle exceptions, as ``fx.checks.handlers.handling`` finds them."""
        self._codes = {id(code): code for code in codes}
        self._trace: Trace | None = None
        self._tracer: Recorder | None = None
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._watching: Any = None
        """The function that Python calls while it watches."""

    def watch(self, trace: Trace, tracer: Recorder, called: Callable[..., T], args: list[Any]) -> T:
        """Return ``called(*args)``; ``tracer`` refuses it if traced values made it raise what it handled.

        Where a debugger traces the functions of this thread, it is not watched. One that starts meanwhile stays.
        """
        outer = sys.gettrace()
        if outer is not None and not isinstance(getattr(outer, "__self__", None), Caught):
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

    def pause(self) -> bool:
        """Stop watching where the tracer's own code begins, of which each step would take several times as long.

        Returns:
            Whether it has: then :meth:`resume` takes it up again.
        """
        if _TOGGLES and self._watching is not None and sys.gettrace() is self._watching:
            sys.settrace(None)
            return True
        return False

    def resume(self) -> None:
        """Watch again, unless a debugger has started meanwhile."""
        if sys.gettrace() is None:
            sys.settrace(self._watching)

    def resumed(self, called: Callable[..., T]) -> Callable[..., T]:
        """``called``, a part of the traced code, watched while the tracer's own code around it is not."""

        def watched(*args: Any, **kwargs: Any) -> T:
            self.resume()
            try:
                return called(*args, **kwargs)
            finally:
                self.pause()

        return watched

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
        found: list[str] = []
        for one in (frame, *callers(frame)):
            if id(one.f_code) in self._codes:
                place = id(one.f_code), one.f_lasti
                names = self._names.get(place)
                if names is None:
                    names = self._names[place] = handled_at(one)
                found += names
        return found
