"""What a pass or a model does to the process that it runs in: what differs afterwards, and putting it back.

A pass that replaces ``torch.relu``, or leaves gradients off, is not seen in the program that it makes. It is seen in
the next test, which fails for no fault of its own.
"""

from __future__ import annotations

import builtins
import math
import operator
import os
import random
import sys
import threading
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
    *(builtins, math, operator, torch, torch.functional, torch.linalg, torch.fft, torch.special, torch.backends),
    *(nn, nn.functional, nn.init, torch_module, torch_fx, torch_symbolic_trace, fx, passes),
)
"""Modules whose attributes are watched: what programs and passes call."""
_WITH_CLASSES = (nn, torch_fx, fx, passes)
"""Those of them whose classes are watched, too."""
_FORGOTTEN = frozenset(
    {"_", "Storage", "__slotnames__", "__doc__", "__abstractmethods__", "__annotations__", "__warningregistry__",
     "__annotate__", "__annotate_func__", "__annotations_cache__"}
)  # fmt: skip
"""Attributes that Python itself writes when it shows, copies, warns or is asked for annotations, and torch with its
default dtype."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """Modules and classes, and in the same order what they are called and their attributes."""

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
    """The process at one moment.

    >>> state = ProcessState.now()
    >>> torch.set_default_dtype(torch.float64)
    >>> state.changes()
    ['the default dtype is float64, was float32']
    >>> state.put_back()
    >>> torch.get_default_dtype()
    torch.float32
    """

    attributes: list[dict[str, Any]]
    """What the attributes of each watched module and class were."""
    values: tuple[Any, ...]
    """What each of :data:`~pytest_fx.harness.switches.SWITCHES` was."""
    modules: int
    """How many modules had been imported."""

    @classmethod
    def now(cls) -> ProcessState:
        """Return the state of the process, as the calling thread sees it."""
        restore_patches()  # what a trace that was interrupted has replaced is none of it
        attributes = [namespace.copy() for namespace in _watched().namespaces]
        return cls(attributes, tuple(switch.read() for switch in SWITCHES), len(sys.modules))

    def changes(self) -> list[str]:
        """Return a sentence on each thing that is not as it was.

        New attributes are changes only if they hide others: what is imported becomes one. Random numbers that were
        drawn are none, nor is what the import of a module may do, if one was imported meanwhile.
        """
        found = [
            f"{_watched().names[place]}.{name} is {'gone' if new is _GONE else f'another {_noun(new)}'}"
            for place, name, _, new in self._changed_attributes()
        ]
        imported = len(sys.modules) != self.modules
        for switch, before in zip(SWITCHES, self.values, strict=True):
            if not (imported and switch.by_imports) and (after := switch.read()) != before:
                found.extend(switch.describe(switch.what, before, after))
        return found

    def put_back(self, *, imports_stay: bool = False) -> None:
        """Make everything as it was, also where an exception from a handler of signals is raised meanwhile.

        Search paths, the environment and whatever else modules change when they are imported are left if
        ``imports_stay``.
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
        """Yield the place of the owner, and the attribute's name and its values; :data:`_GONE` stands for none."""
        watched = _watched()
        if self.attributes == watched.namespaces:  # at C's speed, and so it is nearly always
            return
        for place, (before, after) in enumerate(zip(self.attributes, watched.namespaces, strict=True)):
            if before == after:
                continue
            for name, old in before.items():
                if (
                    (new := after.get(name, _GONE)) is old
                    or name in _FORGOTTEN
                    or new == old
                    or _is_torchs_wrapper(new, old)
                ):
                    continue
                yield place, name, old, new
            for name in after.keys() - before.keys() - _FORGOTTEN:
                if _hides(watched.owners[place], name):
                    yield place, name, _GONE, after[name]


_GONE = object()
_KEEPS_DYNAMO_OUT = str(Path(torch.__file__).with_name("_compile.py"))
_COUNTS_MODULES = str(Path(torch.__file__).parent / "_dynamo" / "mutation_guard.py")


def _is_torchs_wrapper(new: Any, old: Any) -> bool:
    """Return whether torch itself has wrapped a function for its compiler.

    Parts of torch keep it out of functions when they are imported, and when it first compiles it begins to count the
    modules that are made.
    """
    if getattr(new, "_torchdynamo_orig_callable", None) is old:  # which it does not capture, when it first compiles
        return True
    code = getattr(new, "__code__", None)
    file = None if code is None else code.co_filename
    if file == _COUNTS_MODULES:
        return new in (nn.Module.__init__, nn.Module.__setstate__)
    return file == _KEEPS_DYNAMO_OUT and getattr(new, "__wrapped__", None) is old


def _hides(owner: Any, name: str) -> bool:
    """Return whether an attribute stands before one of a base class, or of builtins."""
    if isinstance(owner, type):
        return any(name in vars(base) for base in owner.__mro__[1:])
    return owner is not builtins and hasattr(builtins, name)


def _noun(value: Any) -> str:
    if isinstance(value, type):
        return "class"
    return "function" if callable(value) or isinstance(value, (staticmethod, classmethod)) else "value"


_forks: list[int] = []
"""The thread, once for each time that it has copied the process; processes that run other programs are no copies."""


def _note_fork() -> None:
    """Note who copies the process, but for multiprocessing, whose copies run one function and never return."""
    if sys._getframe(1).f_globals.get("__name__") != "multiprocessing.popen_fork":
        _forks.append(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork)


def count_forks() -> int:
    """Return how many times this thread has copied the process by ``os.fork``.

    What other threads do, such as those by which a library reports that it is used, is no act of what runs in this one;
    and their copies hold that thread alone, and do not go on with what runs here.
    """
    return _forks.count(threading.get_ident())


def has_children() -> bool:
    """Return whether there is a process that this one has started and not waited for, as far as the system tells."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


_unfinished: list[ProcessState] = []
"""The blocks of :func:`process_kept` that have not put back their state, the outermost first."""


@contextmanager
def process_kept(*, imports_stay: bool = False) -> Generator[ProcessState]:
    """Put back, after the block, what it changed of the process, and the states of random generators.

    ``imports_stay`` is that of :meth:`ProcessState.put_back`.

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
        if state in _unfinished:  # finish() was not first
            state.put_back(imports_stay=imports_stay)
            torch.set_rng_state(drawn[0])
            random.setstate(drawn[1])
            numpy.random.set_state(drawn[2])
            del _unfinished[_unfinished.index(state) :]


def unfinished() -> int:
    """Return how many blocks of :func:`process_kept` there are to finish."""
    return len(_unfinished)


def finish(known: int) -> None:
    """Put back the states of all blocks but the first ``known``, which an exception kept from doing it.

    One that comes from a handler of signals can be raised before the first line of what would put back.
    """
    if len(_unfinished) > known:
        _unfinished[known].put_back()
        del _unfinished[known:]


def _finish_blocks(error: BaseException) -> None:
    """Let blocks that ``error`` interrupted while they were entered or left come to their end now, in this test."""
    raised: BaseException | None = error
    while raised is not None:
        clear_interrupted(raised.__traceback__, lambda code: code.co_name in ("__enter__", "__exit__"))
        raised = raised.__context__
