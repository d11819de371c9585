"""What tracing replaces in the running process, and how it is put back (paper, section 4.1).

``torch.nn.Module`` and globals of the traced program are shared by all threads. Every replacement here behaves as the
original unless the calling thread is tracing, stays while any thread is tracing, and is undone by the last one,
whatever ended its trace.

An exception that a handler of signals raises can interrupt between any two steps, also between those that put back. So
nothing here rests on a step being reached. Whether a trace runs is never noted, but asked of the generator that it runs
in, which Python itself knows to be running or not. What is replaced is noted before it is replaced. And
:func:`restore_patches`, which puts back what no running trace needs, can be interrupted anywhere and called again: a
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
    """The innermost trace of this thread; it may have ended."""


class Trace:
    """One trace: the session that it serves, and what it replaces."""

    __slots__ = ("latest_module", "outer", "result", "session", "steps", "stopped")

    def __init__(self, session: Any, program: Callable[[Trace], Any]) -> None:
        self.session = session  # a TraceState: what is done when the thread uses a module
        self.outer: Trace | None = None
        self.result: Any = None
        self.stopped: StopIteration | None = None
        self.latest_module = latest_module()
        """The module that was imported last before it."""
        self.steps: Any = self._run(program)  # a generator, which says whether it is running

    def is_running(self) -> bool:
        """Return whether its program is being run, by whatever thread."""
        return self.steps.gi_running

    def replace(
        self, owner: dict[str, Any] | type, names: Iterable[str], make: Callable[[Any], Any], absent: bool = False
    ) -> None:
        """Let ``owner[name]`` be ``make(its value)`` until this trace, and others that replaced it, have ended.

        A name that a dictionary does not have stands for the builtin. With ``absent``, ``make`` is given ``None`` for
        what is not there.
        """
        with _lock:
            self._replace(owner, dict.fromkeys(names, make), absent)

    def replace_all(self, several: Replacement) -> None:
        """Replace entries of what lives as long as the process, for which others are made once for all traces."""
        with _lock:
            self._replace_all(several)

    def replace_builtins(self, namespace: dict[str, Any], stand_ins: Builtins) -> None:
        """Do so for names of builtins, all at once, since a trace replaces hundreds."""
        with _lock:
            known = _replaced_by(namespace, stand_ins.makers) or stand_ins.replacement_in(namespace)
            self._put_on(known)
            if len(known.stand_ins) < len(stand_ins.makers):
                own = stand_ins.makers.keys() - known.stand_ins.keys()
                self._replace(namespace, {name: stand_ins.makers[name] for name in own}, absent=False)

    def _replace(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool) -> None:
        for name, make in makers.items():
            now = _replacements.get(id(owner), ())
            known = next((each for each in now if name in each.stand_ins), None)
            if known is None:
                known = Replacement(owner, {name: make}, absent)
                known.prepare()
            self._put_on(known)

    def _replace_all(self, several: Replacement) -> None:
        now = _replacements.get(id(several.owner), ())
        if several.holders:
            self._put_on(several)
        elif any(name in each.stand_ins for each in now for name in several.makers):
            self._replace(several.owner, several.makers, several.absent)
        else:
            several.prepare()
            self._put_on(several)

    def _put_on(self, replacement: Replacement) -> None:
        """Let others stand in, as long as this trace runs, too."""
        now = _replacements.setdefault(id(replacement.owner), [])
        if replacement not in now:
            now.append(replacement)  # before the rest: an exception of a signal may come at any step
        replacement.holders.add(self)
        replacement.put_on()

    def stand_ins(self, *owners: dict[str, Any]) -> dict[int, Any]:
        """Return what stands in ``owners`` for the functions that were replaced there, by the identity of these."""
        known = set(map(id, owners))
        ones = [each for each in _replacements_now() if id(each.owner) in known]
        return {id(each.originals[name]): value for each in ones for name, value in each.stand_ins.items()}

    def _replace_standing(self) -> None:
        for several in _standing:
            self._replace_all(several)

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
        except StopIteration as error:  # which no generator lets through
            self.stopped = error
        yield


def replaced_always(owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
    """Let each trace replace such entries."""
    _standing.append(Replacement(owner, makers, absent))


def _replaced_by(owner: dict[str, Any], makers: Mapping[str, Maker]) -> Replacement | None:
    """Return what replaces entries of ``owner`` now by what these makers make."""
    return next((each for each in _replacements.get(id(owner), ()) if each.makers is makers), None)


def _replacements_now() -> list[Replacement]:
    with _lock:  # not around the loop of who asks: its jumps back can be outside of the block in Python 3.12
        return [*itertools.chain(*_replacements.values())]


class _RecursionLimit:
    """Lets modules nest as deep while they are traced as they may when they run, which takes fewer calls."""

    factor = 3
    """How many times the calls of eager code a trace makes, at most."""

    safe = 9_000
    """What the stack of a thread, 8 MiB, holds of frames while programs are traced, also where C stands between them.

    A module that is called by ``sorted`` or ``__getattr__`` takes the most."""

    def __init__(self) -> None:
        self.before = 0
        self.during: int | None = None
        """The limit as long as there are traces; None when it is not replaced."""

    def put_on(self) -> None:
        if self.during is None:
            self.before = sys.getrecursionlimit()
            self.during = max(self.before, min(self.factor * self.before, self.safe))
            sys.setrecursionlimit(self.during)

    def undo(self) -> None:
        if self.during is not None:
            if sys.getrecursionlimit() == self.during:  # else somebody else has set it meanwhile
                with suppress(RecursionError):  # the trace began where little was left
                    sys.setrecursionlimit(self.before)
            self.during = None


_thread = _ThreadState()
_lock = threading.RLock()
_limit = _RecursionLimit()
_traces: list[Trace] = []
_replacements: dict[int, list[Replacement]] = {}
"""What is replaced now, by the identity of the owner."""
_standing: list[Replacement] = []
"""What each trace replaces."""


def run(session: Any, program: Callable[[Trace], Any]) -> Any:
    """Return ``program(trace)``, and send what this thread does with modules meanwhile to ``session``."""
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
        restore_patches()  # the one before may have been interrupted
    if trace.stopped is not None:
        raise trace.stopped
    return trace.result


def _originals() -> dict[int, Any]:
    """Return what is replaced now, by the identity of what stands in."""
    return {
        id(value): each.originals[name]
        for each in _replacements_now()
        for name, value in each.stand_ins.items()
        if each.originals[name] is not ABSENT
    }


def restore_patches() -> None:
    """Put back what traces have replaced that do not run any more."""
    _thread.trace = _running_trace()
    if not _traces and not _replacements and _limit.during is None:
        return
    with _lock:
        _put_back()


def _put_back() -> None:
    """Put back what no running trace needs, under the lock.

    Not written into the block that holds it: from Python 3.12 on, jumps from a condition back to a loop's start may be
    outside of the block's range, so that an exception of a signal's handler there would leave the lock held.
    """
    running = {trace for trace in _traces if trace.is_running()}
    for key, ones in list(_replacements.items()):
        for replacement in list(ones):
            if running.isdisjoint(replacement.holders):
                replacement.undo()
                replacement.holders.clear()
                ones.remove(replacement)
        if not ones:
            _replacements.pop(key, None)
    _traces[:] = running
    if not running:
        _limit.undo()


def are_patches_restored() -> bool:
    """Return whether nothing is replaced for a trace that does not run any more."""
    return all(trace.is_running() for trace in list(_traces)) and (bool(_traces) or not _replacements)


def is_tracing() -> bool:
    """Return whether the calling thread is capturing a program."""
    return _running_trace() is not None


def outside(compute: Callable[[], T]) -> T:
    """Return ``compute()``, during which the calling thread counts as one that captures nothing."""
    before = _thread.trace
    try:
        _thread.trace = None
        return compute()
    finally:
        _thread.trace = before


def running_session() -> Any:
    """The session of the innermost trace of the calling thread; ``None`` where there is no trace."""
    trace = _thread.trace
    if trace is None or (not trace.steps.gi_running and (trace := _running_trace()) is None):
        return None
    return trace.session


def running_tracer() -> Any:
    """The tracer of the innermost trace of the calling thread; ``None`` where there is no trace."""
    session = running_session()
    return None if session is None else session.tracer


def _running_trace() -> Trace | None:
    """The innermost trace of the calling thread."""
    trace = _thread.trace
    while trace is not None and not trace.steps.gi_running:
        trace = trace.outer
    return trace


def while_tracing(stand_in: Callable[..., Any]) -> Maker:
    """Make what stands in for a function: ``stand_in(tracer, function, *args)`` where a trace runs, else itself."""

    def make(original: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            tracer = running_tracer()
            return original(*args, **kwargs) if tracer is None else stand_in(tracer, original, *args, **kwargs)

        called.__name__ = getattr(original, "__name__", "called")
        called.__wrapped__ = called._stands_for = original  # type: ignore[attr-defined]
        return called

    return make


def _make_call(found: Callable[..., Any]) -> Callable[..., Any]:
    original = _behind(found)

    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        trace = _thread.trace
        if trace is None or (not trace.steps.gi_running and (trace := _running_trace()) is None):
            return original(self, *args, **kwargs)
        return trace.session.module_called(original, self, args, kwargs)

    module_call.__wrapped__ = original  # type: ignore[attr-defined]
    return module_call


def _make_getattr(found: Callable[[torch.nn.Module, str], Any]) -> Callable[[torch.nn.Module, str], Any]:
    original = _behind(found)

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


def _behind(found: Any) -> Any:
    """The original of what somebody else kept while it stood in for it, and has put back since."""
    return found.__wrapped__ if getattr(found, "__code__", None) in _STAND_INS else found


_STAND_INS: set[Any] = set()
_STAND_INS.update(make(torch.nn.Module.__init__).__code__ for make in (_make_call, _make_getattr))
replaced_always(torch.nn.Module, {"__call__": _make_call, "__getattr__": _make_getattr})
