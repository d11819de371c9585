"""Exceptions in traced code: those that a traced value causes, and those that the code handles.

Traced values cause exceptions that concrete ones would not (``range(x.shape[0])``). They are reported in this library's
form. If the traced code handles one and continues, the trace follows another path than eager code, and is refused. And
an operation that raises nothing while it is traced may raise when the program runs. The traced code would then continue
after its ``except``; a captured program has none.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

import torch

from fx.bytecode.values import handled_at
from fx.capture.guided import GuidedProxy
from fx.capture.patching import Trace
from fx.checks.questions import TO_COMPUTE
from fx.errors import FxError, TracedValueError, TraceError, add_note
from fx.frames import is_users, is_users_file, package_of_file, user_location
from fx.naming.printing import describe
from fx.proxy import Proxy, TracerBase

T = TypeVar("T")
_TO_SLICE = "register a tensor as a buffer of its module, or use torch.narrow: it takes traced sizes"
_TO_RESIZE = "give sizes as a tuple: torch.ones((rows, columns)), tensor.expand((rows, -1))"
_MISUSES = (
    ("cannot be interpreted as an integer", "use a traced value as an integer", TO_COMPUTE),
    ("slice indices must be", "use a traced value as a bound of a slice of a real list or tensor", _TO_SLICE),
    ("indices must be integers", "use a traced value as an index of a real list or tuple", TO_COMPUTE),
    ("int() argument must be", "convert a traced value to int", TO_COMPUTE),
    ("float() argument must be", "convert a traced value to float", TO_COMPUTE),
    ("must be a mapping", "pass a traced value as **kwargs", TO_COMPUTE),
    ("must be real number", "convert a traced value to a number", TO_COMPUTE),
    ("takes 1 positional argument but", "use traced values as sizes, one by one, for a function of real tensors",
     _TO_RESIZE),
    ("__delitem__", "delete an element of a traced value", TO_COMPUTE),
    ("object has no attribute", "set an attribute of a traced value", TO_COMPUTE),
    ("unhashable", "hash a traced value", TO_COMPUTE),
    ("", "use a traced value here", TO_COMPUTE),
)  # fmt: skip
"""Fragments of Python's messages, each with the action that is not possible and the remedy; the first match applies."""
_OF_FUNCTIONS = (
    "transform a function of traced values in this way",
    "put the call into a function marked fx.wrap, and pass it all that it uses, parameters and buffers too",
)
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_TRANSFORMS = tuple(os.path.join(_TORCH, name) + os.sep for name in ("_functorch", "_higher_order_ops"))
_TRACED = (Proxy, GuidedProxy)
_IDENTIFIER = re.compile(r"\w+")
_NAMES = ("Proxy", "'Attribute'", "fx.proxy.Attribute", "GuidedAttribute", "__delitem__")
_NAMED = re.compile(r"fx\.(proxy|capture)\.\w+'|\b(Guided)?Proxy\b")
_OF_TENSORS = re.compile(r"^slice indices must be|^(?P<function>\w+)\(\) takes 1 positional argument but")
"""Python's messages about a sliced or resized tensor, which do not name the traced value."""


def explain_misuse(error: Exception, program: CodeType | None = None) -> None:
    """Raise a ``TraceError`` for ``error`` if a traced value in the wrong place caused it.

    If code of a library raised it, the error names the line of ``program``'s package that calls the library.
    """
    refused = error if isinstance(error, TraceError) else misuse(error, error.__traceback__)
    if refused is None:
        return
    own = None if program is None else package_of_file(program.co_filename)
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if is_users(frame)]
    packages = [package_of_file(frame.f_code.co_filename) for frame in frames]
    entered = max((place for place, package in enumerate(packages) if package in (None, own)), default=len(frames))
    if entered + 1 < len(frames):
        where, remedy = user_location(frames[entered], {}), _way_around(frames[entered], frames[entered + 1])
        what, *lines = [line for line in str(refused).splitlines() if not line.startswith(("  where", "  try"))]
        refused.args = ("\n".join([what, f"  where  {where}", *lines, f"  try    {remedy}"]),)
    if refused is not error:
        raise refused from error


def _way_around(caller: FrameType, called: FrameType) -> str:
    """Return the remedy that keeps the called function of a library as one call of ``caller``."""
    code, file = called.f_code, os.path.basename(caller.f_code.co_filename)
    owner = called.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if isinstance(owner, torch.nn.Module):
        return f"make {type(owner).__name__} a leaf (is_leaf_module of a Tracer)"
    names = (name for name, value in caller.f_globals.items() if getattr(value, "__code__", None) is code)
    name = next(names, None)
    import_text = "" if name is not None else f"from {called.f_globals.get('__name__')} import {code.co_name}, "
    name = name or code.co_name
    return f'keep it as one call: {import_text}call it as {name}, and put fx.wrap("{name}") at the top level of {file}'


def misuse(error: Exception, traceback: TracebackType | None) -> TracedValueError | None:
    """Return the error to report instead if a traced value in the wrong place caused ``error``."""
    frame = _innermost(traceback)
    if not _is_misuse(error, frame):
        return None
    what, remedy = next((what, remedy) for fragment, what, remedy in _MISUSES if fragment in str(error))
    if _is_transform(traceback):
        what, remedy = _OF_FUNCTIONS
    return TracedValueError(
        f"cannot {what}",
        where=user_location(frame, {}),
        value="; ".join(describe(value.node) for value in _traced_values(frame) or ()) or None,
        why=f"its value is known only when the module runs ({type(error).__name__}: {error})",
        remedy=remedy,
    )


def _is_transform(traceback: TracebackType | None) -> bool:
    """Return whether a transform of functions, or a caller of them, raised the error: not the function passed to it."""
    in_transform = False
    for frame, _ in walk_tb(traceback):
        file = frame.f_code.co_filename
        in_transform = file.startswith(_TRANSFORMS) or (in_transform and not is_users_file(file))
    return in_transform


def note_other_run(error: Exception, other: Exception, how: str) -> None:
    """Add to the error of one run of a program the error of another run, unless both are the same."""
    if str(other) != str(error):
        text = str(other) if isinstance(other, FxError) else f"{type(other).__name__}: {other}"
        add_note(error, f"{how}, it fails too: {text}")


def _says_tensor(error: BaseException | None) -> bool:
    match = _OF_TENSORS.match(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return False
    name = match["function"]
    return name is None or hasattr(torch.Tensor, name) or hasattr(torch, name)


def _is_misuse(error: Exception, frame: FrameType | None) -> bool:
    """Return whether an error is about a traced value: its message or the line that raised it names one."""
    text = str(error)
    if isinstance(error, RuntimeError):
        return _NAMED.search(text) is not None or "unpackString" in text
    if not isinstance(error, (TypeError, AttributeError, ValueError, IndexError)):
        return False
    return any(name in text for name in _NAMES) or (_says_tensor(error) and _knows_traced(frame))


def _innermost(traceback: TracebackType | None) -> FrameType | None:
    """Return the frame that raised the error; where a mode of torch made the call (``torch.device``), its caller."""
    frames = [frame for frame, _ in walk_tb(traceback) if frame.f_code.co_name != "__torch_function__"]
    return frames[-1] if frames else None


def _knows_traced(frame: FrameType | None) -> bool:
    """Return whether the failing line names traced values; if its text is unknown, whether its function has any."""
    named = _traced_values(frame)
    if named is None and frame is not None:
        return any(type(value) in _TRACED for value in frame.f_locals.values())
    return bool(named)


def _traced_values(frame: FrameType | None) -> list[Proxy] | None:
    """Return the traced values that the failing line names; None if its text is unknown."""
    location = user_location(frame, {})
    # in generated code, the location is the line of the user's code that the node was made from
    if frame is None or location is None or not location.text or location.line != frame.f_lineno:
        return None
    named = set(_IDENTIFIER.findall(location.text))
    return [value for name, value in frame.f_locals.items() if name in named and type(value) in _TRACED]


# Exceptions that the traced code handles.

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

    def __init__(self, trace: Trace, tracer: TracerBase, codes: Iterable[CodeType]) -> None:
        """Watch functions that handle exceptions, whose codes ``fx.bytecode.values.handling`` returns."""
        self._codes = {id(code): code for code in codes}
        self._trace: Trace | None = trace
        self._tracer = tracer
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._thread = threading.get_ident()
        self._watching: Any = None
        """The function that Python calls while it watches."""

    def watch(self, called: Callable[..., T], args: list[Any]) -> T:
        """Return ``called(*args)``; the tracer refuses the program if it handles an exception of traced values.

        Python's monitoring reports exceptions, if it has a free tool id. Otherwise, if a debugger traces the functions
        of this thread, nothing is watched. A debugger that starts meanwhile stays.
        """
        if _monitoring is not None:
            with _lock:
                _monitored.append(self)
                _monitor()
            if _tools:
                try:
                    return called(*args)
                finally:
                    self._trace = None
                    forget_ended()
        outer = sys.gettrace()
        if outer is not None and not isinstance(getattr(outer, "__self__", None), HandledExceptions):
            return called(*args)
        self._watching = self._function_called
        sys.settrace(self._watching)
        try:
            return called(*args)
        finally:
            if sys.gettrace() in (self._watching, None):
                sys.settrace(outer)
            self._watching = None

    def is_watching(self) -> bool:
        """Return whether the watched trace is running."""
        return self._trace is not None and self._trace.is_running()

    def note(self, code: CodeType, error: BaseException) -> None:
        """Keep an exception that is raised in ``code``, or passes through it, if a traced value causes it."""
        if id(code) in self._codes and self._thread == threading.get_ident() and self.is_watching():
            self._raised_here(error, error.__traceback__)

    def pause(self) -> bool:
        """Stop watching the tracer's own code, which takes several times as long else. Return whether it stopped."""
        # later versions instrument all code again for it
        if self._watching is not None and _monitoring is None and sys.gettrace() is self._watching:
            sys.settrace(None)
            return True
        return False

    def resume(self) -> None:
        """Watch again after a pause, unless a debugger has started meanwhile."""
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
        if not self.is_watching():  # a signal handler has prevented the removal
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
        if self._tracer._state.refused is None:
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
