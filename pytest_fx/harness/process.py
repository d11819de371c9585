"""Process state that a pass or a model changes: finding the changes, and restoring the state.

A pass that replaces ``torch.relu``, or leaves gradients disabled, does not show it in its program. It shows in the next
test, which fails for no fault of its own.
"""

from __future__ import annotations

import builtins
import math
import operator
import os
import random
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import fx as torch_fx
from torch import nn
from torch.fx import _symbolic_trace as torch_symbolic_trace
from torch.nn.modules import module as torch_module

import fx
from fx import passes
from fx.capture.patching import restore_patches
from fx.frames import clear_interrupted
from pytest_fx.harness.switches import SWITCHES

_MODULES = (
    *(builtins, math, operator, time, torch, torch.functional, torch.linalg, torch.fft, torch.special, torch.backends),
    *(nn, nn.functional, nn.init, torch_module, torch_fx, torch_symbolic_trace, fx, passes),
)
"""Modules whose attributes are watched, since programs and passes call them."""
_WITH_CLASSES = (nn, torch_fx, fx, passes)
"""Modules whose classes are watched, too."""
_IGNORED = frozenset(
    {"_", "Storage", "__slotnames__", "__doc__", "__abstractmethods__", "__annotations__", "__warningregistry__",
     "__annotate__", "__annotate_func__", "__annotations_cache__"}
)  # fmt: skip
"""Attributes written by Python itself when it displays, copies, warns or evaluates annotations, and by torch together
with the default dtype."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """The watched modules and classes, and in the same order their names and attributes."""

    owners: list[Any]
    names: list[str]
    namespaces: list[Any]


@cache
def _watched() -> _Watched:
    classes = [each for module in _WITH_CLASSES for each in vars(module).values() if isinstance(each, type)]
    named = {module.__name__: module for module in _MODULES}
    named |= {f"{each.__module__}.{each.__qualname__}": each for each in (torch.Tensor, *classes)}
    return _Watched([*named.values()], [*named], [vars(owner) for owner in named.values()])


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # thousands of values
class ProcessState:
    """The state of the process at one moment.

    >>> state = ProcessState.now()
    >>> torch.set_default_dtype(torch.float64)
    >>> state.changes()
    ['the default dtype is float64, was float32']
    >>> state.put_back()
    >>> torch.get_default_dtype()
    torch.float32
    """

    attributes: list[dict[str, Any]]
    """The attributes of each watched module and class."""
    values: tuple[Any, ...]
    """The value of each of :data:`~pytest_fx.harness.switches.SWITCHES`."""
    modules: int
    """The number of imported modules."""

    @classmethod
    def now(cls) -> ProcessState:
        """Return the state of the process, as the calling thread sees it."""
        restore_patches()  # the patches of an interrupted trace are not part of the state
        attributes = [namespace.copy() for namespace in _watched().namespaces]
        return cls(attributes, tuple(switch.read() for switch in SWITCHES), len(sys.modules))

    def changes(self) -> list[str]:
        """Return a sentence on each change since.

        New attributes are changes only if they hide others, since imports add attributes. Drawing random numbers is no
        change, nor is anything that an import may do if a module was imported meanwhile.
        """
        sentences = [
            f"{_watched().names[place]}.{name} is {'gone' if new is _GONE else f'another {_noun(new)}'}"
            for place, name, _, new in self._changed_attributes()
        ]
        imported = len(sys.modules) != self.modules
        for switch, before in zip(SWITCHES, self.values, strict=True):
            if not (imported and switch.by_imports) and (after := switch.read()) != before:
                sentences.extend(switch.describe(switch.what, before, after))
        return sentences

    def put_back(self, *, imports_stay: bool = False) -> None:
        """Restore the state, even if a signal handler raises an exception meanwhile.

        With ``imports_stay``, search paths, the environment and other state that imports change are left as they are.
        """
        try:
            self._put_back(imports_stay)
        except BaseException:
            self._put_back(imports_stay)
            raise

    def _put_back(self, imports_stay: bool) -> None:
        for switch, before in zip(SWITCHES, self.values, strict=True):
            if not (imports_stay and switch.by_imports) and switch.read() != before:
                switch.write(before)
        for place, name, old, _ in list(self._changed_attributes()):
            owner = _watched().owners[place]
            if old is _GONE:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

    def _changed_attributes(self) -> Iterator[tuple[int, str, Any, Any]]:
        """Yield the position of the owner, the attribute's name, and its values before and after, or :data:`_GONE`."""
        watched = _watched()
        if self.attributes == watched.namespaces:  # nearly always, and the comparison runs in C
            return
        for place, (before, after) in enumerate(zip(self.attributes, watched.namespaces, strict=True)):
            if before == after:
                continue
            for name, old in before.items():
                if (
                    (new := after.get(name, _GONE)) is old
                    or name in _IGNORED
                    or new == old
                    or _is_torchs_wrapper(new, old)
                ):
                    continue
                yield place, name, old, new
            for name in after.keys() - before.keys() - _IGNORED:
                if _hides(watched.owners[place], name):
                    yield place, name, _GONE, after[name]


_GONE = object()
_KEEPS_DYNAMO_OUT = str(Path(torch.__file__).with_name("_compile.py"))
_COUNTS_MODULES = str(Path(torch.__file__).parent / "_dynamo" / "mutation_guard.py")


def _is_torchs_wrapper(new: Any, old: Any) -> bool:
    """Return whether torch itself has wrapped a function for its compiler.

    When imported, parts of torch exclude functions from compilation. The first compilation wraps the constructor of
    modules, to count them.
    """
    if getattr(new, "_torchdynamo_orig_callable", None) is old:  # excluded from capture by the first compilation
        return True
    code = getattr(new, "__code__", None)
    file = None if code is None else code.co_filename
    if file == _COUNTS_MODULES:
        return new in (nn.Module.__init__, nn.Module.__setstate__)
    return file == _KEEPS_DYNAMO_OUT and getattr(new, "__wrapped__", None) is old


def _hides(owner: Any, name: str) -> bool:
    """Return whether an attribute shadows one of a base class, or a builtin."""
    if isinstance(owner, type):
        return any(name in vars(base) for base in owner.__mro__[1:])
    return owner is not builtins and hasattr(builtins, name)


def _noun(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    return "function" if callable(value) or isinstance(value, (staticmethod, classmethod)) else "value"


_forks: list[int] = []
"""The identifier of the forking thread, for each fork of the process; a start of another program is no fork."""


def _note_fork() -> None:
    """Record the forking thread, except for forks of multiprocessing, which run one function and never return."""
    if sys._getframe(1).f_globals.get("__name__") != "multiprocessing.popen_fork":
        _forks.append(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork)


def count_forks() -> int:
    """Return how many times this thread has forked the process by ``os.fork``.

    Forks by other threads, such as those of a library that reports its usage, are not caused by this thread. A child of
    such a fork contains the forking thread alone, and does not continue the code that runs here.
    """
    return _forks.count(threading.get_ident())


def has_children() -> bool:
    """Return whether this process has a child that it has not waited for; False if the system cannot tell."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


_unfinished: list[ProcessState] = []
"""States of the :func:`process_kept` blocks that have not restored them, the outermost first."""


@contextmanager
def process_kept(*, imports_stay: bool = False) -> Generator[ProcessState]:
    """Restore, after the block, the process state and the states of random generators.

    ``imports_stay`` has the meaning that it has in :meth:`ProcessState.put_back`.

    >>> with process_kept():
    ...     torch.set_default_dtype(torch.float64)
    >>> torch.get_default_dtype()
    torch.float32
    """
    state = ProcessState.now()
    drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    _unfinished.append(state)
    try:
        yield state
    except BaseException as error:
        _finish_blocks(error)
        raise
    finally:
        if state in _unfinished:  # unless finish() has restored it
            state.put_back(imports_stay=imports_stay)
            torch.set_rng_state(drawn[0])
            random.setstate(drawn[1])
            numpy.random.set_state(drawn[2])
            del _unfinished[_unfinished.index(state) :]


def unfinished() -> int:
    """Return the number of :func:`process_kept` blocks that have not restored their state."""
    return len(_unfinished)


def finish(known: int) -> None:
    """Restore the states of all blocks but the first ``known``, if an exception prevented that.

    A signal handler can raise one before the first line of the code that restores.
    """
    if len(_unfinished) > known:
        _unfinished[known].put_back()
        del _unfinished[known:]


def _finish_blocks(error: BaseException) -> None:
    """Finish the blocks that ``error`` interrupted in ``__enter__`` or ``__exit__`` now, within this test."""
    raised: BaseException | None = error
    while raised is not None:
        clear_interrupted(raised.__traceback__, lambda code: code.co_name in ("__enter__", "__exit__"))
        raised = raised.__context__
