"""Passes by name, so that a command line or a configuration file can ask for ``"fuse-conv-bn"``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from fx.errors import PassError
from fx.registry import Registry

if TYPE_CHECKING:
    from fx.graph_module import GraphModule

Pass: TypeAlias = "Callable[[GraphModule], GraphModule | None]"
"""What a pass is: it edits the program it is given, or returns another one."""

Definition = TypeVar("Definition", bound=Callable[..., Any])

# classes, which make a pass, and functions, which are one
_definitions: Registry[Callable[..., Any]] = Registry("pass", "passes", PassError)


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
    _definitions.register(pass_name(definition), definition)
    return definition


def get_pass(name: str) -> Pass:
    """Return the pass registered as ``name``, with its default options.

    Raises :class:`~fx.errors.PassError`, which lists the nearest names, if there is none.
    """
    definition = _definitions.get(name)
    return cast("Pass", definition() if isinstance(definition, type) else definition)


def list_passes() -> list[str]:
    """Return the names of all registered passes in alphabetical order."""
    return _definitions.names()


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
