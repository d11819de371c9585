"""Values that code reaches by name: globals, variables of outer functions, methods; and its handling of exceptions."""

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
from fx.bytecode.values import handling
from fx.capture.restore.places import PLAIN
from fx.frames import is_our_file, is_pythons_file, is_users_file
from fx.provenance import GENERATED_FILES

_NAMELESS = PLAIN | {torch.Tensor, tuple, frozenset}
"""Classes of values that swallow no exceptions, and need not be searched for code that does."""


@dataclass(frozen=True, slots=True)
class NamesInCode:
    """Names in the code of a function, and of the functions nested in it."""

    read: tuple[str, ...]
    """Names of globals, and of attributes."""
    globals: frozenset[str]
    """Names among these that are read as globals."""
    assigned: frozenset[str]
    """Globals that are assigned."""
    stored: frozenset[str]
    """Attributes that are assigned or deleted."""


@once_for_code
def names_of(code: CodeType) -> NamesInCode:
    """Return the names in the code that its author can have written.

    Tools add others, such as pytest's ``@pytest_ar`` for asserts, from which all of the tool could be reached.
    """
    codes = nested(code)
    read = dict.fromkeys(name for nested_code in codes for name in nested_code.co_names if name.isidentifier())
    return NamesInCode(tuple(read), globals_read(codes), assigned(codes, "global"), assigned(codes, "attr"))


class Facts:
    """Facts about the code that a capture will run."""

    def __init__(self) -> None:
        self.handling: list[CodeType] = []
        """The code that handles exceptions."""
        self.read: set[str] = set()
        """The names of globals and attributes in it."""
        self.stored: set[str] = set()
        """The attributes that it assigns or deletes."""
        self.namespaces: dict[int, dict[str, Any]] = {}
        """The globals of the functions, by identity."""
        self.compares_with_truth = False
        """True if some of it compares with ``True`` or ``False`` by identity."""

    def add(self, function: FunctionType) -> NamesInCode:
        """Add the code of a function. Return the names in it."""
        code = function.__code__
        self.namespaces[id(function.__globals__)] = function.__globals__
        self.handling += handling(function)
        self.compares_with_truth = self.compares_with_truth or compares_with_truth(code)
        names = names_of(code)
        self.read.update(names.read)
        self.stored.update(names.stored)
        return names

    def add_decorator(self, function: Any) -> None:
        """Add only the exception handling of a decorator."""
        if isinstance(function, FunctionType) and is_users_own(function.__code__.co_filename):
            self.handling += handling(function)


def methods_of(kinds: Iterable[type]) -> dict[str, list[FunctionType]]:
    """Return the functions that the user's classes among ``kinds`` and their base classes define, by name."""
    methods: dict[str, list[FunctionType]] = {}
    for kind in dict.fromkeys(base for derived in kinds for base in derived.__mro__):
        if kind is not object and not kind.__module__.startswith(("torch.", "fx.")):
            for name, value in list(vars(kind).items()):  # another thread may be replacing some
                if type(value) is not FunctionType:
                    if type(value) in _NAMELESS:
                        continue
                    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(value, FunctionType):
                    methods.setdefault(name, []).append(value)
    return methods


def modules_named(namespaces: Iterable[dict[str, Any]], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the globals of modules that code with these names reaches, such as ``torch.nn.functional``, from its own.

    The state of this package itself changes during a capture, and is not part of the program.
    """
    visited: set[int] = set()
    pending = list(namespaces)
    for namespace in pending:
        for name in names:
            if type(value := namespace.get(name)) is ModuleType and id(value) not in visited:
                visited.add(id(value))
                if not is_our_file(vars(value).get("__file__") or ""):
                    pending.append(vars(value))
                    yield vars(value)


def called_by(value: Any) -> FunctionType | None:
    """Return the function that a value is, or that a partial, a method or a result of ``lru_cache`` calls, if any."""
    while not isinstance(value, FunctionType):
        if type(value) is functools.partial:
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif type(value).__module__ == "functools":
            value = getattr(value, "__wrapped__", None)
        else:
            return None
    return value


def is_users_class(kind: type) -> bool:
    """Return whether a class is the user's, according to the file of one of its methods or of its module."""
    if kind.__module__.startswith(("torch", "fx.", "builtins")):
        return False
    files = (value.__code__.co_filename for value in [*vars(kind).values()] if isinstance(value, FunctionType))
    return is_users_own(next(files, getattr(sys.modules.get(kind.__module__), "__file__", None)))


def is_users_own(file: str | None) -> bool:
    """Return whether a file is the user's: not Python's, not torch's, not generated."""
    return file is not None and is_users_file(file) and not is_pythons_file(file) and file not in GENERATED_FILES
