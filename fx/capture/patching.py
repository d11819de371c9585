"""Replacements that tracing makes in the running process, and how they are undone (paper, section 4.1).

All threads share ``torch.nn.Module`` and the globals of the traced program. So each replacement behaves like the
original unless the calling thread is tracing. It stays while any thread is tracing; the last trace to end undoes it,
however it ended.

The exception of a signal handler can interrupt between any two steps, also between the steps that restore. So nothing
here relies on a step being reached:

- No flag says that a trace is running. The generator that runs it does: Python knows whether a generator is running.
- A replacement is noted before it is made, and :meth:`Replacement.undo` can be interrupted and called again.
- :func:`restore_patches`, which undoes all that no running trace needs, can be interrupted anywhere and called again. A
  trace calls it when it ends, and when it starts.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from operator import is_
from types import FunctionType
from typing import Any, TypeVar

import torch

from fx.capture.restore.leftovers import latest_module, put_back_in_modules_after
from fx.capture.restore.places import ABSENT

T = TypeVar("T")
Maker = Callable[[Any], Any]
"""A function that makes the replacement for the original value of an entry."""


class Replacement:
    """Entries of one dictionary or class, the replacement for each, and the traces that need them."""

    __slots__ = ("absent", "entries", "holders", "makers", "namespace", "originals", "owner", "stand_ins")

    def __init__(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
        """Prepare to replace the names in ``makers`` by the results of these for the original values.

        A name that the owner lacks means the builtin. If it is no builtin either, it is left out, or its maker called
        with ``None`` if ``absent`` is true.
        """
        self.owner = owner
        self.namespace: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
        self.entries = _entries_of(owner) if isinstance(owner, type) else owner
        """The dictionary to write to; None if each attribute of the class has to be set."""
        self.makers = makers
        self.absent = absent
        self.originals: dict[str, Any] = {}
        """The original value of each name."""
        self.stand_ins: dict[str, Any] = {}
        self.holders: set[Any] = set()
        """The traces that need it."""

    def prepare(self) -> None:
        """Make the replacements for the current values, again if a value has changed since the last time."""
        namespace, originals = self.namespace, self.originals
        if len(originals) == len(self.makers) and _holds(namespace, originals):
            return
        for name, make in self.makers.items():
            current = namespace.get(name, ABSENT)
            if originals.get(name, self) is current:
                continue
            original = getattr(builtins, name, None) if current is ABSENT else current
            if original is not None or self.absent:
                self.stand_ins[name] = value = make(original)
                originals[name] = current
                if isinstance(self.owner, type) and not _is_looked_up(name, current, value):
                    self.entries = None

    def put_on(self) -> None:
        """Install the replacements where the entries have their original values."""
        entries, originals = self.entries, self.originals
        if entries is not None and _holds(entries, originals):
            entries.update(self.stand_ins)
        else:
            for name, value in self.stand_ins.items():
                if self.namespace.get(name, ABSENT) is originals[name]:
                    self._write(name, value)
        if isinstance(self.owner, type):
            _modified(self.owner)

    def undo(self) -> None:
        """Restore the original values, except where other code has replaced them since."""
        entries, originals = self.entries, self.originals
        if entries is not None and _holds(entries, self.stand_ins):
            for name, original in originals.items():  # hundreds for each trace, so without a call for each
                if original is ABSENT:
                    del entries[name]
                else:
                    entries[name] = original
        else:
            for name, value in self.stand_ins.items():
                if self.namespace.get(name) is value:
                    self._write(name, originals[name])
        if isinstance(self.owner, type):
            _modified(self.owner)

    def _write(self, name: str, value: Any) -> None:
        if self.entries is not None:
            if value is ABSENT:
                del self.entries[name]
            else:
                self.entries[name] = value
        elif value is ABSENT:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)


def _holds(owner: Mapping[str, Any], entries: dict[str, Any]) -> bool:
    """Return whether a dictionary has all of these entries."""
    return all(map(is_, map(owner.get, entries, repeat(ABSENT)), entries.values()))


# Setting ``__call__`` of a class makes Python look up how to call instances in all its subclasses: torch.nn.Module has
# hundreds, which takes longer than to trace a small model. If one Python function replaces another, these lookups need
# not be repeated. Python's cache of attributes depends on the version of the class.

_modified: Callable[[type], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Invalidates Python's cache of the attributes of a class and its subclasses."""


def _is_looked_up(name: str, *values: Any) -> bool:
    """Return whether Python looks a name up in the class at each use, for each of these values."""
    return not name.startswith("__") or all(type(value) is FunctionType for value in values)


def _entries_of(owner: type) -> dict[str, Any] | None:
    """Return the dictionary of a class, behind the read-only view of it; None if it cannot be identified."""
    referents = gc.get_referents(vars(owner))
    return referents[0] if len(referents) == 1 and type(referents[0]) is dict else None


class Builtins:
    """Replacements for builtins that code calls by name: one set for all globals that do not define the names."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        """Make the replacement for each name of ``makers``."""
        self.stand_ins = {name: make(getattr(builtins, name)) for name, make in makers.items()}
        """The replacement for each name."""
        for name, value in self.stand_ins.items():
            if isinstance(value, FunctionType):
                vars(value)["_stands_for"] = getattr(builtins, name)
        self.makers = {name: partial(self._stand_in, name, make) for name, make in makers.items()}
        self._absent = dict.fromkeys(makers, ABSENT)

    def _stand_in(self, name: str, make: Maker, original: Any) -> Any:
        return self.stand_ins[name] if original is getattr(builtins, name) else make(original)

    def replacement_in(self, namespace: dict[str, Any]) -> Replacement:
        """Return the replacement in globals. It is ready if they have none of the names: a trace makes hundreds."""
        replacement = Replacement(namespace, self.makers)
        if self.makers.keys().isdisjoint(namespace):
            replacement.originals, replacement.stand_ins = dict(self._absent), dict(self.stand_ins)
        return replacement


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

    def replace(self, owner: dict[str, Any] | type, names: Iterable[str], make: Maker, absent: bool = False) -> None:
        """Replace ``owner[name]`` by ``make(its value)`` until this trace and all others that replace it have ended."""
        self.replace_all(Replacement(owner, dict.fromkeys(names, make), absent))

    def replace_all(self, replacement: Replacement) -> None:
        """Replace entries of one owner. The replacements of another trace that is running are shared."""
        with _lock:
            self._replace_all(replacement)

    def _replace_all(self, replacement: Replacement) -> None:
        # apart from the block that holds the lock: see _put_back
        owner, makers = replacement.owner, replacement.makers
        now = _replacements.get(id(owner), ())
        if replacement not in now:
            for other in [each for each in now if not each.stand_ins.keys().isdisjoint(makers)]:
                self._put_on(other)
                makers = {name: make for name, make in makers.items() if name not in other.stand_ins}
            if makers is not replacement.makers:
                replacement = Replacement(owner, makers, replacement.absent)
            replacement.prepare()
        if makers:
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


def _replacements_now() -> list[Replacement]:
    with _lock:  # not around the caller's loop: its jumps back can be outside of the block in Python 3.12
        return [*chain(*_replacements.values())]


class _RecursionLimit:
    """Raises the recursion limit while tracing: modules may nest as deep as in eager mode, which takes fewer calls."""

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


def outside_of_trace(compute: Callable[[], T]) -> T:
    """Return ``compute()``, hidden from the trace that is running."""
    before = _thread.trace
    try:
        _thread.trace = None
        with torch._C.DisableTorchFunction():
            return compute()
    finally:
        _thread.trace = before


def running_session() -> Any:
    """Return the session of the innermost trace of the calling thread; ``None`` if there is no trace."""
    trace = _running_trace()
    return None if trace is None else trace.session


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
        trace = _running_trace()
        if trace is None:
            return original(self, *args, **kwargs)
        return trace.session.module_called(original, self, args, kwargs)

    module_call.__wrapped__ = original  # type: ignore[attr-defined]
    return module_call


def _make_getattr(current: Callable[[torch.nn.Module, str], Any]) -> Callable[[torch.nn.Module, str], Any]:
    original = _behind(current)

    def module_getattr(self: torch.nn.Module, name: str) -> Any:
        value = original(self, name)
        trace = _running_trace()
        return value if trace is None else trace.session.tracer.getattr(name, value, trace.session.parameter_proxies)

    module_getattr.__wrapped__ = original  # type: ignore[attr-defined]
    return module_getattr


def _behind(current: Any) -> Any:
    """Return the original of a replacement that other code stored during a trace and has written back since."""
    return current.__wrapped__ if getattr(current, "__code__", None) in _STAND_INS else current


_STAND_INS: set[Any] = set()
_STAND_INS.update(make(torch.nn.Module.__init__).__code__ for make in (_make_call, _make_getattr))
replaced_always(torch.nn.Module, {"__call__": _make_call, "__getattr__": _make_getattr})
