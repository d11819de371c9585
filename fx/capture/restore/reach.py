"""What code reaches by name: globals, variables of outer functions, methods; and how it handles exceptions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from fx.bytecode.dialects import nested, once_for_code
from fx.bytecode.mentions import assigned, compares_with_truth, globals_read
from fx.capture.restore.places import PLAIN
from fx.checks.handlers import handling
from fx.frames import is_our_file, is_pythons_file, is_users_file
from fx.provenance import GENERATED_FILES

_NAMELESS = PLAIN | {torch.Tensor, tuple, frozenset}
"""Classes of what swallows no exceptions, and is looked into by nobody who looks for that."""


@dataclass(frozen=True, slots=True)
class NamesInCode:
    """Names in the code of a function, and of the functions that are written in it."""

    read: tuple[str, ...]
    """Names of globals, and of attributes."""
    globals: frozenset[str]
    """Those among them that are read as globals."""
    assigned: frozenset[str]
    """Globals that are assigned."""
    stored: frozenset[str]
    """Attributes that are assigned or deleted."""


@once_for_code
def names_of(code: CodeType) -> NamesInCode:
    """Return the names in some code that its author can have written.

    Tools add others, as pytest's ``@pytest_ar`` behind asserts. All of the tool is reached from there.
    """
    codes = nested(code)
    read = dict.fromkeys(name for one in codes for name in one.co_names if name.isidentifier())
    return NamesInCode(tuple(read), globals_read(codes), assigned(codes, "global"), assigned(codes, "attr"))


class Facts:
    """What a capture has to know of the code that it will run."""

    def __init__(self) -> None:
        self.handling: list[CodeType] = []
        """The code that handles exceptions."""
        self.read: set[str] = set()
        """What names of globals and attributes are in it."""
        self.stored: set[str] = set()
        """What attributes it assigns or deletes."""
        self.namespaces: dict[int, dict[str, Any]] = {}
        """The globals of the functions, by identity."""
        self.compares_with_truth = False
        """Whether some of it compares with ``True`` or ``False`` by identity."""

    def add(self, function: FunctionType) -> NamesInCode:
        """Look at the code of a function. Return the names in it."""
        code = function.__code__
        self.namespaces[id(function.__globals__)] = function.__globals__
        self.handling += handling(function)
        self.compares_with_truth = self.compares_with_truth or compares_with_truth(code)
        names = names_of(code)
        self.read.update(names.read)
        self.stored.update(names.stored)
        return names

    def add_decorator(self, function: Any) -> None:
        """Look at what a decorator handles, which is not looked into otherwise."""
        if isinstance(function, FunctionType) and is_users_own(function.__code__.co_filename):
            self.handling += handling(function)


def methods_of(kinds: Iterable[type]) -> dict[str, list[FunctionType]]:
    """The functions that the user's classes among ``kinds``, and those they inherit from, define, by name."""
    found: dict[str, list[FunctionType]] = {}
    for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
        if kind is not object and not kind.__module__.startswith(("torch.", "fx.")):
            for name, value in list(vars(kind).items()):  # another thread may be replacing some
                if type(value) is not FunctionType:
                    if type(value) in _NAMELESS:
                        continue
                    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(value, FunctionType):
                    found.setdefault(name, []).append(value)
    return found


def modules_named(namespaces: Iterable[dict[str, Any]], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the globals of modules that code with these names reaches, as ``torch.nn.functional``, from its own.

    What this package itself holds changes while a program is captured, and is no state of the program.
    """
    seen: set[int] = set()
    pending = list(namespaces)
    for held in pending:
        for name in names:
            if type(value := held.get(name)) is ModuleType and id(value) not in seen:
                seen.add(id(value))
                if not is_our_file(vars(value).get("__file__") or ""):
                    pending.append(vars(value))
                    yield vars(value)


def called_by(value: Any) -> FunctionType | None:
    """Return the function that a value is, or that a ``functools.partial`` calls; None for other values."""
    while type(value) is functools.partial:
        value = value.func
    return value if isinstance(value, FunctionType) else None


def behind(value: Any) -> Any:
    """Return the function behind a method, or behind what a decorator of Python's made, as ``functools.lru_cache``."""
    if isinstance(value, MethodType):
        return value.__func__
    return getattr(value, "__wrapped__", None) if type(value).__module__ == "functools" else None


def is_users_class(kind: type) -> bool:
    """Return whether a class is the user's, as a method says that it defines itself; or its module."""
    if kind.__module__.startswith(("torch", "fx.", "builtins")):
        return False
    files = (value.__code__.co_filename for value in [*vars(kind).values()] if isinstance(value, FunctionType))
    return is_users_own(next(files, getattr(sys.modules.get(kind.__module__), "__file__", None)))


def is_users_own(file: str | None) -> bool:
    """Return whether a file is the user's: neither Python's, nor torch's, nor generated."""
    return file is not None and is_users_file(file) and not is_pythons_file(file) and file not in GENERATED_FILES
