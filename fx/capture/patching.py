"""Replacements that tracing makes in the running process, and how they are undone (paper, section 4.1).

All threads share ``torch.nn.Module`` and the globals of the traced program. So each replacement behaves like the
original unless the calling thread is tracing. It stays while any thread is tracing; the last trace to end undoes it,
however it ended.

The exception of a signal handler can interrupt between any two steps, also between the steps that restore. So nothing
here relies on a step being reached:

- No flag says that a trace is running. The generator that runs it does: Python knows whether a generator is running.
- A replacement is noted before it is made.
- :func:`restore_patches`, which undoes all that no running trace needs, can be interrupted anywhere and called again. A
  trace calls it when it ends, and when it starts.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import torch

from fx.capture.replacements import Builtins, Maker, Replacement
from fx.capture.restore.leftovers import latest_module, put_back_in_modules_after
from fx.capture.restore.places import ABSENT

T = TypeVar("T")


class _ThreadState(threading.local):
    trace: Trace | None = None
    """The innermost trace of this thread, which may have ended."""


class Trace:
    """One trace: its session, and its replacements."""

    __slots__ = ("latest_module", "outer", "result", "session", "steps", "stopped")

    def __init__(self, session: Any, program: Callable[[Trace], Any]) -> None:
        self.session = session  # a TraceState: handles the thread's use of modules
        self.outer: Trace | None = None
        self.result: Any = None
        self.stopped: StopIteration | None = None
        self.latest_module = latest_module()
        """The last module that was imported before the trace."""
        self.steps: Any = self._run(program)  # a generator, which knows whether it is running

    def is_running(self) -> bool:
        """Return whether any thread is running its program."""
        return self.steps.gi_running

    def replace(
        self, owner: dict[str, Any] | type, names: Iterable[str], make: Callable[[Any], Any], absent: bool = False
    ) -> None:
        """Replace ``owner[name]`` by ``make(its value)`` until this trace and all others that replace it have ended.

        A name that a dictionary lacks means the builtin. With ``absent``, ``make`` is called with ``None`` for a name
        that is no builtin either.
        """
        with _lock:
            self._replace(owner, dict.fromkeys(names, make), absent)

    def replace_all(self, replacement: Replacement) -> None:
        """Replace entries of a long-lived owner, with replacements that all traces share."""
        with _lock:
            self._replace_all(replacement)

    def replace_builtins(self, namespace: dict[str, Any], stand_ins: Builtins) -> None:
        """Replace names of builtins, all at once, since a trace replaces hundreds."""
        with _lock:
            replacement = _replaced_by(namespace, stand_ins.makers) or stand_ins.replacement_in(namespace)
            self._put_on(replacement)
            if len(replacement.stand_ins) < len(stand_ins.makers):
                own = stand_ins.makers.keys() - replacement.stand_ins.keys()
                self._replace(namespace, {name: stand_ins.makers[name] for name in own}, absent=False)

    def _replace(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool) -> None:
        for name, make in makers.items():
            replacements = _replacements.get(id(owner), ())
            current = next((each for each in replacements if name in each.stand_ins), None)
            if current is None:
                current = Replacement(owner, {name: make}, absent)
                current.prepare()
            self._put_on(current)

    def _replace_all(self, replacement: Replacement) -> None:
        now = _replacements.get(id(replacement.owner), ())
        if replacement.holders:
            self._put_on(replacement)
        elif any(name in each.stand_ins for each in now for name in replacement.makers):
            self._replace(replacement.owner, replacement.makers, replacement.absent)
        else:
            replacement.prepare()
            self._put_on(replacement)

    def _put_on(self, replacement: Replacement) -> None:
        """Install a replacement as long as this trace runs."""
        now = _replacements.setdefault(id(replacement.owner), [])
        if replacement not in now:
            now.append(replacement)  # before the rest: the exception of a signal may come at any step
        replacement.holders.add(self)
        replacement.put_on()

    def stand_ins(self, *owners: dict[str, Any]) -> dict[int, Any]:
        """Return the replacements in ``owners``, by the identity of the original functions."""
        owner_ids = set(map(id, owners))
        replacements = [each for each in _replacements_now() if id(each.owner) in owner_ids]
        return {id(each.originals[name]): value for each in replacements for name, value in each.stand_ins.items()}

    def _replace_standing(self) -> None:
        for replacement in _standing:
            self._replace_all(replacement)

    def _run(self, program: Callable[[Trace], Any]) -> Generator[None]:
        restore_patches()
        with _lock:
            _traces.append(self)
            self._replace_standing()
            _limit.put_on()
        self.outer = _thread.trace
        _thread.trace = self
        try:
            self.result = program(self)
        except StopIteration as error:  # a generator does not let it through
            self.stopped = error
        yield


def replaced_always(owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
    """Let each trace replace these entries."""
    _standing.append(Replacement(owner, makers, absent))


def _replaced_by(owner: dict[str, Any], makers: Mapping[str, Maker]) -> Replacement | None:
    """Return the current replacement of entries of ``owner`` that these makers made."""
    return next((each for each in _replacements.get(id(owner), ()) if each.makers is makers), None)


def _replacements_now() -> list[Replacement]:
    with _lock:  # not around the caller's loop: its jumps back can be outside of the block in Python 3.12
        return [*itertools.chain(*_replacements.values())]


class _RecursionLimit:
    """Raises the recursion limit while tracing.

    Modules may then nest as deep as in eager mode, which takes fewer calls.
    """

    factor = 3
    """The maximal ratio of the calls that a trace makes to those of eager code."""

    safe = 9_000
    """The number of frames that a thread's stack, 8 MiB, holds while tracing, also with C frames between.

    A module that ``sorted`` or ``__getattr__`` calls takes the most.
    """

    def __init__(self) -> None:
        self.before = 0
        self.during: int | None = None
        """The limit while there are traces; None when it is not replaced."""

    def put_on(self) -> None:
        if self.during is None:
            self.before = sys.getrecursionlimit()
            self.during = max(self.before, min(self.factor * self.before, self.safe))
            sys.setrecursionlimit(self.during)

    def undo(self) -> None:
        if self.during is not None:
            if sys.getrecursionlimit() == self.during:  # else other code has set it since
                with suppress(RecursionError):  # the trace began with little stack left
                    sys.setrecursionlimit(self.before)
            self.during = None


_thread = _ThreadState()
_lock = threading.RLock()
_limit = _RecursionLimit()
_traces: list[Trace] = []
_replacements: dict[int, list[Replacement]] = {}
"""The current replacements, by the identity of the owner."""
_standing: list[Replacement] = []
"""The replacements that each trace makes."""


def run(session: Any, program: Callable[[Trace], Any]) -> Any:
    """Return ``program(trace)``, and pass this thread's use of modules meanwhile to ``session``."""
    trace = Trace(session, program)
    try:
        try:
            for _ in trace.steps:
                pass
        finally:
            if latest_module() != trace.latest_module:
                put_back_in_modules_after(trace.latest_module, _originals())
            restore_patches()
    finally:
        restore_patches()  # the call before may have been interrupted
    if trace.stopped is not None:
        raise trace.stopped
    return trace.result


def _originals() -> dict[int, Any]:
    """Return the originals of the current replacements, by the identity of the replacement."""
    return {
        id(value): each.originals[name]
        for each in _replacements_now()
        for name, value in each.stand_ins.items()
        if each.originals[name] is not ABSENT
    }


def restore_patches() -> None:
    """Undo the replacements that only ended traces needed."""
    _thread.trace = _running_trace()
    if not _traces and not _replacements and _limit.during is None:
        return
    with _lock:
        _put_back()


def _put_back() -> None:
    """Undo the replacements that no running trace needs; the caller holds the lock.

    Not written into the block that holds it: from Python 3.12 on, a jump from a condition back to the start of a loop
    may be outside of the block's range. The exception of a signal handler there would leave the lock held.
    """
    running = {trace for trace in _traces if trace.is_running()}
    for key, replacements in list(_replacements.items()):
        for replacement in list(replacements):
            if running.isdisjoint(replacement.holders):
                replacement.undo()
                replacement.holders.clear()
                replacements.remove(replacement)
        if not replacements:
            _replacements.pop(key, None)
    _traces[:] = running
    if not running:
        _limit.undo()


def are_patches_restored() -> bool:
    """Return whether no replacement is left of a trace that has ended."""
    return all(trace.is_running() for trace in list(_traces)) and (bool(_traces) or not _replacements)


def is_tracing() -> bool:
    """Return whether the calling thread is capturing a program."""
    return _running_trace() is not None


def outside(compute: Callable[[], T]) -> T:
    """Return ``compute()``, during which the calling thread does not count as tracing."""
    before = _thread.trace
    try:
        _thread.trace = None
        return compute()
    finally:
        _thread.trace = before


def running_session() -> Any:
    """Return the session of the innermost trace of the calling thread; ``None`` if there is no trace."""
    trace = _thread.trace
    if trace is None or (not trace.steps.gi_running and (trace := _running_trace()) is None):
        return None
    return trace.session


def running_tracer() -> Any:
    """Return the tracer of the innermost trace of the calling thread; ``None`` if there is no trace."""
    session = running_session()
    return None if session is None else session.tracer


def _running_trace() -> Trace | None:
    """Return the innermost running trace of the calling thread."""
    trace = _thread.trace
    while trace is not None and not trace.steps.gi_running:
        trace = trace.outer
    return trace


def while_tracing(stand_in: Callable[..., Any]) -> Maker:
    """Make a replacement that calls ``stand_in(tracer, function, *args)`` while tracing, else the function."""

    def make(original: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            tracer = running_tracer()
            return original(*args, **kwargs) if tracer is None else stand_in(tracer, original, *args, **kwargs)

        called.__name__ = getattr(original, "__name__", "called")
        called.__wrapped__ = called._stands_for = original  # type: ignore[attr-defined]
        return called

    return make


def _make_call(current: Callable[..., Any]) -> Callable[..., Any]:
    original = _behind(current)

    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        trace = _thread.trace
        if trace is None or (not trace.steps.gi_running and (trace := _running_trace()) is None):
            return original(self, *args, **kwargs)
        return trace.session.module_called(original, self, args, kwargs)

    module_call.__wrapped__ = original  # type: ignore[attr-defined]
    return module_call


def _make_getattr(current: Callable[[torch.nn.Module, str], Any]) -> Callable[[torch.nn.Module, str], Any]:
    original = _behind(current)

    def module_getattr(self: torch.nn.Module, name: str) -> Any:
        value = original(self, name)
        trace = _thread.trace
        if trace is None or (not trace.steps.gi_running and (trace := _running_trace()) is None):
            return value
        session = trace.session
        if session.modules_are_themselves and isinstance(value, torch.nn.Module):
            return value
        return session.attribute_read(self, name, value)

    module_getattr.__wrapped__ = original  # type: ignore[attr-defined]
    return module_getattr


def _behind(current: Any) -> Any:
    """Return the original of a replacement that other code stored during a trace and has written back since."""
    return current.__wrapped__ if getattr(current, "__code__", None) in _STAND_INS else current


_STAND_INS: set[Any] = set()
_STAND_INS.update(make(torch.nn.Module.__init__).__code__ for make in (_make_call, _make_getattr))
replaced_always(torch.nn.Module, {"__call__": _make_call, "__getattr__": _make_getattr})
