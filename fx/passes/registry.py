"""Passes by name, so that a command line or a configuration file can ask for ``"fuse-conv-bn"``."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from fx.errors import PassError

if TYPE_CHECKING:
    from fx.graph_module import GraphModule

Pass: TypeAlias = "Callable[[GraphModule], GraphModule | None]"
"""What a pass is: it edits the program it is given, or returns another one."""

Definition = TypeVar("Definition", bound=Callable[..., Any])

_definitions: dict[str, Callable[..., Any]] = {}  # classes, which make a pass, and functions, which are one


def register_pass(definition: Definition) -> Definition:
    """Make a pass known under its name; use it as a decorator of a pass class or of a plain function.

    A class is registered under its attribute ``name`` and must be constructible without arguments. A function
    ``fuse_gelu`` is registered as ``"fuse-gelu"``, unless it has an attribute ``name``. Raises
    :class:`~fx.errors.PassError` if another definition has the name already.

    >>> @register_pass
    ... def leave_as_it_is(graph_module):
    ...     return graph_module
    >>> get_pass("leave-as-it-is") is leave_as_it_is
    True
    """
    name = pass_name(definition)
    other = _definitions.get(name)
    if other is not None and other is not definition:
        raise PassError(
            f"two passes are named {name!r}",
            value=f"{_describe_definition(other)} and {_describe_definition(definition)}",
            why="a name stands for one pass",
            remedy="rename one of them, through its attribute `name`",
        )
    _definitions[name] = definition
    return definition


def get_pass(name: str) -> Pass:
    """Return the pass registered as ``name``, with its default options.

    Raises :class:`~fx.errors.PassError`, which lists the nearest names, if there is none.
    """
    definition = _definitions.get(name)
    if definition is None:
        nearest = difflib.get_close_matches(name.replace("_", "-").lower(), _definitions, n=3, cutoff=0.4)
        raise PassError(
            f"there is no pass named {name!r}",
            value=None if nearest else "known passes: " + ", ".join(list_passes()),
            remedy="did you mean " + " or ".join(repr(candidate) for candidate in nearest) + "?" if nearest else None,
        )
    return cast("Pass", definition() if isinstance(definition, type) else definition)


def list_passes() -> list[str]:
    """Return the names of all registered passes in alphabetical order."""
    return sorted(_definitions)


def pass_name(pass_: object) -> str:
    """Return what a pass, or a pass class, is called in messages and tables.

    >>> def fuse_gelu(graph_module): ...
    >>> pass_name(fuse_gelu)
    'fuse-gelu'
    """
    name = getattr(pass_, "name", None)
    if isinstance(name, str):
        return name
    function_name = getattr(pass_, "__name__", None)
    if isinstance(function_name, str) and not isinstance(pass_, type):
        return function_name.replace("_", "-")
    pass_class = pass_ if isinstance(pass_, type) else type(pass_)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", pass_class.__name__)
    return words.replace("_", "-").lower()


def _describe_definition(definition: Callable[..., Any]) -> str:
    """Return the qualified name of a definition and, where it can be found out, its line."""
    described: Any = definition if hasattr(definition, "__qualname__") else type(definition)
    text = f"{described.__module__}.{described.__qualname__}"
    try:
        return f"{text} (line {inspect.getsourcelines(described)[1]})"
    except (OSError, TypeError):  # no source: typed in an interpreter, or built-in
        return text
