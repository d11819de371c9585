"""Bad calls of all public callables, made from signatures: the callables, and the outcome of a call."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bad_values import World

from fx.errors import FxError, note_lines

FORM = re.compile(r"\n  (where|value|why|try) ")
"""The lines after the first of our errors."""


@dataclass(frozen=True, slots=True)
class Target:
    """One public callable."""

    name: str
    """Its dotted name: module, class and method."""
    bind: Callable[[World], Callable[..., Any]]
    """Maps a fresh world to the callable."""
    signature: inspect.Signature
    """Its parameters, without ``self``."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One bad call."""

    target: Target
    """The function to call."""
    argument: str
    """The parameter that is misused, or the fault of the list of arguments."""
    value: str
    """The name of the bad value in the world; empty if the argument list is bad."""

    def __str__(self) -> str:
        return f"{self.target.name}: {self.argument}" + (f" = {self.value}" if self.value else "")


_OF_TORCH = re.compile(
    r"^\w+\(\): argument '\w+' .*must be|failed to match any schema|received an invalid combination"
    r"|Invalid device string|Expected one of cpu, cuda|Cannot access accelerator|Device (string|index) must not be"
)
"""Messages of torch itself about an argument: its name and the values it takes; or an unknown device."""
_OF_PYTHON = re.compile(r"^[\w.<>]+\(\) (missing|takes|got) ")
"""Messages of Python about a list of arguments."""

MISSING, SURPLUS, UNKNOWN = "(missing)", "(one too many)", "(unknown keyword)"
"""The faults of a list of arguments."""


def public_modules(root: str) -> list[ModuleType]:
    """Return the modules of a package that have ``__all__``."""
    package = importlib.import_module(root)
    names = [root, *(package.name for package in pkgutil.walk_packages(package.__path__, f"{root}."))]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [module for module in modules if hasattr(module, "__all__")]


def public_callables(root: str) -> dict[str, Any]:
    """Return the callables of a package, each once, under the shortest of its names."""
    by_id: dict[int, tuple[str, Any]] = {}
    for module in public_modules(root):
        for name in module.__all__:
            value = getattr(module, name)
            home = getattr(value, "__module__", None) or ""
            if not callable(value) or home.partition(".")[0] != root:
                continue
            if isinstance(value, type) and issubclass(value, BaseException):
                continue
            full = f"{module.__name__}.{name}"
            if id(value) not in by_id or len(full) < len(by_id[id(value)][0]):
                by_id[id(value)] = (full, value)
    return dict(by_id.values())


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods that a class of ours defines or inherits from one."""
    root = kind.__module__.partition(".")[0]
    for name in dir(kind):
        attribute = inspect.getattr_static(kind, name)
        function = attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute
        if name[:1] != "_" and inspect.isfunction(function) and function.__module__.partition(".")[0] == root:
            yield name, attribute


def attempts(target: Target, values: list[str]) -> Iterator[Attempt]:
    """Each parameter with each bad value, and lists that are too short, too long, or have an unknown name."""
    parameters = target.signature.parameters
    for name, parameter in parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield from (Attempt(target, name, value) for value in values)
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            yield Attempt(target, f"{MISSING} {name}", "")
    yield Attempt(target, SURPLUS, "")
    yield Attempt(target, UNKNOWN, "")


def arguments(attempt: Attempt, world: World, good: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a bad call."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in attempt.target.signature.parameters.items():
        chosen = attempt.argument == name
        if parameter.kind is parameter.VAR_KEYWORD or attempt.argument == f"{MISSING} {name}":
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [world.values[attempt.value]] if chosen else []
        elif chosen or parameter.default is parameter.empty or name in good:
            value = world.values[attempt.value] if chosen else good[name]
            if parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[name] = value
    if attempt.argument == SURPLUS:
        count = len(attempt.target.signature.parameters) + 1
        args += [0] * count
    if attempt.argument == UNKNOWN:
        kwargs["no_such_keyword"] = 0
    return args, kwargs


def end_of(call: Callable[[], Any]) -> str | None:
    """Return the fault in the outcome of a bad call, if there is one; accepting the call is no fault."""
    try:
        call()
    except FxError as error:
        return None if FORM.search(str(error)) else f"says no more than: {error}"
    except Exception as error:
        return None if _is_pythons(error) or is_explained(error) else f"{type(error).__name__}: {error!s:.120}"
    return None


def is_explained(error: Exception) -> bool:
    """Return whether a foreign error names its cause: by a note of ours, or by the name of a file."""
    explained = bool(note_lines(error)) or (isinstance(error, OSError) and error.filename is not None)
    return explained or _OF_TORCH.search(str(error)) is not None


def _is_pythons(error: Exception) -> bool:
    """Return whether Python itself refused the list of arguments, before anything of ours ran."""
    trace, innermost = error.__traceback__, ""
    while trace is not None:
        innermost, trace = trace.tb_frame.f_code.co_name, trace.tb_next
    refused = innermost in ("end_of", "call") or _OF_PYTHON.search(str(error)) is not None
    return isinstance(error, TypeError) and refused
