"""What tracing replaces in the running process, and how it is put back (paper, section 4.1).

``torch.nn.Module`` and globals of the traced program are shared by all threads. Every replacement here behaves as the
original unless the calling thread is tracing, stays while any thread is tracing, and is undone by the last one,
whatever ended its trace.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch


class Session(Protocol):
    """What a trace does when the thread that it runs in uses a module."""

    def module_called(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``module(*args, **kwargs)`` was called."""

    def attribute_read(self, module: torch.nn.Module, name: str, value: Any) -> Any:
        """``module.name`` was read and found to be ``value``."""


_ABSENT = object()


class _ThreadState(threading.local):
    session: Session | None = None


_thread = _ThreadState()
_lock = threading.RLock()


class _Replacement:
    """One replaced entry of a namespace, and the traces that need it."""

    __slots__ = ("holders", "name", "namespace", "original", "value")

    def __init__(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        self.namespace = namespace
        self.name = name
        self.value = value
        self.original = namespace.get(name, _ABSENT)
        self.holders: set[object] = set()

    def undo(self) -> None:
        if self.namespace.get(self.name) is not self.value:
            return  # somebody else has replaced it meanwhile
        if self.original is _ABSENT:
            del self.namespace[self.name]
        else:
            self.namespace[self.name] = self.original


_replacements: dict[tuple[int, str], _Replacement] = {}
_module_holders: set[Patcher] = set()
_module_methods: dict[str, Any] = {}


class Patcher:
    """The replacements of one trace."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._keys: list[tuple[int, str]] = []

    def replace(self, namespace: dict[str, Any], names: Iterable[str], make: Callable[[Any], Any]) -> None:
        """Let ``namespace[name]`` be ``make(its value)`` until this trace, and others that replaced it, have ended.

        A name that ``namespace`` does not have stands for the builtin.
        """
        with _lock:
            for name in names:
                key = (id(namespace), name)
                replacement = _replacements.get(key)
                if replacement is None:
                    original = namespace.get(name, getattr(builtins, name, None))
                    if original is None:
                        continue
                    replacement = _replacements[key] = _Replacement(namespace, name, make(original))
                    namespace[name] = replacement.value
                self._keys.append(key)
                replacement.holders.add(self)

    def undo(self) -> None:
        """Let go of every replacement."""
        with _lock:
            for key in self._keys:
                replacement = _replacements.get(key)
                if replacement is None:
                    continue
                replacement.holders.discard(self)
                if not replacement.holders:
                    replacement.undo()
                    del _replacements[key]
            self._keys.clear()


@contextmanager
def tracing(session: Session) -> Generator[Patcher, None, None]:
    """Send what this thread does with modules to ``session``, and give it a patcher for globals."""
    previous = _thread.session
    patcher = Patcher()
    try:
        _hold_modules(patcher)
        _thread.session = session
        yield patcher
    finally:
        _thread.session = previous
        patcher.undo()
        _release_modules(patcher)


def is_tracing() -> bool:
    """Whether the calling thread is capturing a program."""
    return _thread.session is not None


@contextmanager
def paused() -> Generator[None, None, None]:
    """Treat modules as usual in this thread for the time of the block."""
    session = _thread.session
    _thread.session = None
    try:
        yield
    finally:
        _thread.session = session


def open_traces() -> tuple[set[Patcher], Session | None, bool]:
    """Return the traces of the calling thread that have not ended, its session, and whether modules are replaced."""
    thread = threading.get_ident()
    return (
        {patcher for patcher in list(_module_holders) if patcher.thread == thread},
        _thread.session,
        bool(_module_methods),
    )


def end_traces(before: tuple[set[Patcher], Session | None, bool]) -> None:
    """End the traces that are open now and were not when :func:`open_traces` returned ``before``.

    A trace ends by itself, unless an exception strikes while it does so: a handler of signals may raise one anywhere.
    """
    with _lock:
        for patcher in open_traces()[0] - before[0]:
            patcher.undo()
            _module_holders.discard(patcher)
        _restore_modules()
    _thread.session = before[1]


def _hold_modules(holder: Patcher) -> None:
    with _lock:
        _module_holders.add(holder)
        if not _module_methods:
            methods = {name: torch.nn.Module.__dict__[name] for name in _REPLACED}
            _module_methods.update(methods)
            for name, make in _REPLACED.items():
                setattr(torch.nn.Module, name, make(methods[name]))
            _limit.raise_()


def _release_modules(holder: Patcher) -> None:
    with _lock:
        _module_holders.discard(holder)
        _restore_modules()


def _restore_modules() -> None:
    if not _module_holders and _module_methods:
        for name, original in _module_methods.items():
            setattr(torch.nn.Module, name, original)
        _module_methods.clear()
        _limit.restore()


class _RecursionLimit:
    """Lets modules nest as deep while they are traced as they may when they run, which takes fewer calls."""

    factor = 3
    """How many times the calls of eager code a trace makes, at most."""

    def __init__(self) -> None:
        self.before = 0
        self.during = 0

    def raise_(self) -> None:
        self.before = sys.getrecursionlimit()
        self.during = self.factor * self.before
        sys.setrecursionlimit(self.during)

    def restore(self) -> None:
        if sys.getrecursionlimit() == self.during:  # else somebody else has set it meanwhile
            with suppress(RecursionError):  # the trace began where little was left
                sys.setrecursionlimit(self.before)


_limit = _RecursionLimit()


def _make_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        session = _thread.session
        if session is None:
            return original(self, *args, **kwargs)
        return session.module_called(original, self, args, kwargs)

    return module_call


def _make_getattr(original: Callable[[torch.nn.Module, str], Any]) -> Callable[[torch.nn.Module, str], Any]:
    def module_getattr(self: torch.nn.Module, name: str) -> Any:
        value = original(self, name)
        session = _thread.session
        return value if session is None else session.attribute_read(self, name, value)

    return module_getattr


_REPLACED: dict[str, Callable[[Any], Any]] = {
    "__call__": _make_call,
    "__getattr__": _make_getattr,
}
