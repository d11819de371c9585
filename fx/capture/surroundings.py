"""What traced code reaches outside of its modules: globals, variables of outer functions, defaults and classes."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from fx.capture.kept_values import KeptValue, elements, keep, kept_cell, kept_container, kept_names
from fx.checks.bytecode import nested, once_for_code
from fx.checks.handlers import ATTRIBUTE, SUPPRESS, handling, swallowed_by, swallowing
from fx.checks.questions import compares_with_truth
from fx.frames import is_pythons_file, is_users_file
from fx.provenance import GENERATED_FILES

_DEEPEST = 4
_MOST_FUNCTIONS = 400
"""How many functions are looked at for one program."""
_PLAIN = frozenset({int, float, str, bool, tuple, type(None), torch.Tensor, torch.dtype, torch.device, frozenset})

_REPLACED = frozenset({MethodType, BuiltinMethodType, functools.partial})
"""The classes of what draws random numbers, for which others stand in globals: see fx.capture.recorded_calls."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that a function reaches, as it was."""

    function: Any
    """The function that reaches it."""
    name: str
    """What the function calls it."""
    kept: KeptValue
    """What it was."""


@dataclass(frozen=True, slots=True)
class _Names:
    read: tuple[str, ...]
    """Names of globals, and of attributes."""
    assigned: frozenset[str]
    """Globals that are assigned."""
    stored: frozenset[str]
    """Attributes that are assigned or deleted."""


_STORE_GLOBAL = {dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]}
_STORE_ATTR = {dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]}


@once_for_code
def _names_of(code: CodeType) -> _Names:
    codes = nested(code)
    read = dict.fromkeys(name for one in codes for name in one.co_names)
    return _Names(tuple(read), _named_by(codes, _STORE_GLOBAL), _named_by(codes, _STORE_ATTR))


def _named_by(codes: list[CodeType], instructions: set[int]) -> frozenset[str]:
    """The names that some instructions have in some code."""
    with_them = [one for one in codes if not instructions.isdisjoint(one.co_code[::2])]
    steps = (step for one in with_them for step in dis.get_instructions(one))
    return frozenset(step.argval for step in steps if step.opcode in instructions)


def _methods_of(kinds: Iterable[type]) -> dict[str, list[FunctionType]]:
    """The functions that the user's classes among ``kinds``, and those they inherit from, define, by name."""
    found: dict[str, list[FunctionType]] = {}
    for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
        if kind is not object and not kind.__module__.startswith(("torch.", "fx.")):
            for name, value in vars(kind).items():
                if type(value) is not FunctionType:
                    if type(value) in _PLAIN:
                        continue
                    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(value, FunctionType):
                    found.setdefault(name, []).append(value)
    return found


class Surroundings:
    """What a program can change outside of its modules, as it was before a trace."""

    def __init__(self, functions: Iterable[FunctionType], kinds: Iterable[type], others: Iterable[type]) -> None:
        """Keep what ``functions``, and ``forward`` of all ``kinds``, reach by name, and attributes of the classes.

        Methods that are reached may be those of ``others``.
        """
        self._outside: list[Outside] = []
        self._seen: set[int] = set()
        self._methods = _methods_of((*kinds, *others))
        self.handling: list[CodeType] = []
        """The code of what is reached that handles exceptions."""
        self.managers: dict[str, tuple[str, ...]] = dict(SUPPRESS)
        """What context managers that swallow exceptions are called there, with the classes of these."""
        self._codes: list[CodeType] = []
        self.namespaces: dict[int, dict[str, Any]] = {}
        """The globals of what is reached, by identity."""
        self.read: set[str] = set()
        """What names of globals and attributes are in it."""
        self.stored: set[str] = set()
        """What attributes it assigns."""
        self.compares_with_truth = False
        """Whether some of it compares with ``True`` or ``False`` by identity."""
        self._pending: list[Any] = [*self._methods.get("forward", ()), *functions]
        for one in self._pending:
            while hasattr(one, "__wrapped__"):
                self._look_at_decorator(one)
                one = one.__wrapped__
            if id(one) not in self._seen and len(self._seen) < _MOST_FUNCTIONS:
                self._seen.add(id(one))
                self._pending += self._look_at(one)
        for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
            # Messages name a function that reaches what is kept: for a class, any of its own.
            held = next((value for value in vars(kind).values() if isinstance(value, FunctionType)), None)
            self._keep_class(held, kind)
        # `with self.guard:` names no class: any attribute may hold such an object.
        if any(swallowed_by(kind) is not None for kind in others):
            self.managers[ATTRIBUTE] = ("BaseException",)
        if len(self.managers) > len(SUPPRESS):
            self.handling += [one for code in self._codes for one in swallowing(code, self.managers)]

    def _note_manager(self, name: str, value: Any) -> None:
        """Note what swallows exceptions in a ``with`` statement."""
        if type(value) not in _PLAIN and not isinstance(value, torch.nn.Module):
            names = swallowed_by(value)
            if names is not None:
                self.managers[name] = names

    def _look_at_decorator(self, function: Any) -> None:
        """Note what a decorator handles, which is not looked into otherwise."""
        code = getattr(function, "__code__", None)
        if code is not None and _is_users_own(code.co_filename):
            self.handling += handling(code)

    def _look_at(self, function: Any) -> Iterator[FunctionType]:
        code = getattr(function, "__code__", None)
        if code is None or not _is_users_own(code.co_filename):
            return
        self.handling += handling(code)
        self._codes.append(code)
        self.compares_with_truth = self.compares_with_truth or compares_with_truth(code)
        names, namespace = _names_of(code), function.__globals__
        self.namespaces[id(namespace)] = namespace
        self.read.update(names.read)
        self.stored.update(names.stored)
        if names.assigned:
            for name in names.assigned:
                self._outside.append(Outside(function, name, kept_names(namespace, (name,))))
        for name in names.read:
            for method in self._methods.get(name, ()):
                yield method
                self._note_manager(name, method)
            if (value := namespace.get(name)) is None:  # most are names of attributes
                continue
            self._note_manager(name, value)
            kind = type(value)
            if (called := called_by(value)) is not None:
                yield called
            elif kind is ModuleType:
                held = vars(value)
                if _is_users_own(getattr(value, "__file__", None)):
                    for inner in names.read:
                        if inner in held:
                            self._keep(function, inner, held[inner], _DEEPEST)
            elif isinstance(value, type):
                self._keep_class(function, value)
            elif kind not in _PLAIN and kind not in _REPLACED:
                self._keep(function, name, value, _DEEPEST)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield from self._look_at_cell(function, name, cell)
        for name, value in {**function.__dict__, **(function.__kwdefaults__ or {})}.items():
            self._keep(function, name, value, _DEEPEST)
        for value in function.__defaults__ or ():
            self._keep(function, function.__name__, value, _DEEPEST)
        self._outside.append(Outside(function, function.__name__, kept_container(function.__dict__)))

    def _look_at_cell(self, function: FunctionType, name: str, cell: Any) -> Iterator[FunctionType]:
        try:
            value = cell.cell_contents
        except ValueError:  # nothing yet
            return
        self._note_manager(name, value)
        if (called := called_by(value)) is not None:
            yield called
        elif not isinstance(value, torch.nn.Module):
            self._outside.append(Outside(function, name, kept_cell(cell)))
            self._keep(function, name, value, _DEEPEST)

    def _keep(self, function: FunctionType, name: str, value: Any, depth: int) -> None:
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        kept = keep(value)
        if kept is None:
            return
        self._seen.add(id(value))
        self._outside.append(Outside(function, name, kept))
        for element in elements(value) if depth else ():
            if (called := called_by(element)) is not None:
                self._pending.append(called)
            else:
                self._keep(function, name, element, depth - 1)

    def _keep_class(self, function: FunctionType | None, kind: type) -> None:
        own = id(kind) not in self._seen and not kind.__module__.startswith(("torch", "fx.", "builtins"))
        if function is None or not own or not _is_users_own(_file_of(kind)):
            return
        self._seen.add(id(kind))
        held = [name for name in vars(kind) if not name.startswith("__")]
        self._outside.append(Outside(function, kind.__name__, kept_names(kind, held)))
        for name in held:
            self._keep(function, name, vars(kind)[name], _DEEPEST)

    def iterators(self) -> list[Any]:
        """The iterators among it."""
        return [one.kept.iterator for one in self._outside if one.kept.iterator is not None]

    def generators(self) -> list[Outside]:
        """The generators of random numbers among it."""
        return [one for one in self._outside if one.kept.is_generator]

    def changed(self) -> list[Outside]:
        """Return what is something else now."""
        return [one for one in self._outside if one.kept.is_changed()]

    def restore(self) -> None:
        """Put all back."""
        for one in self._outside:
            if one.kept.is_changed():
                one.kept.restore()
        self._outside = []


def called_by(value: Any) -> FunctionType | None:
    """Return the function that a value is, or that a ``functools.partial`` calls; None for other values."""
    while type(value) is functools.partial:
        value = value.func
    return value if isinstance(value, FunctionType) else None


def _file_of(kind: type) -> str | None:
    """Return where a class stands, as a method says that it defines itself; or its module."""
    files = (value.__code__.co_filename for value in vars(kind).values() if isinstance(value, FunctionType))
    return next(files, getattr(sys.modules.get(kind.__module__), "__file__", None))


def _is_users_own(file: str | None) -> bool:
    return file is not None and is_users_file(file) and not is_pythons_file(file) and file not in GENERATED_FILES
