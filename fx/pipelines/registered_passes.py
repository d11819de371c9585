"""The registry of passes by name, so that a command line or a configuration file can name ``"fuse-conv-bn"``.

A package registers its passes by :func:`register_pass`. Without being imported, it can offer them by entry points of
the group ``fx.passes``, whose names are the passes' names::

    [project.entry-points."fx.passes"]
    fuse-gelu = "my_package.passes:FuseGelu"
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

from torch import nn

from fx.argument_types import check_construction, checked
from fx.arguments import shown
from fx.errors import PassError, add_note, type_in_words
from fx.graph_module import GraphModule
from fx.pipelines.contract import contract_of
from fx.pipelines.option_text import PassText, parse_text, refuse
from fx.pipelines.pass_options import make_pass, options_of, write_options
from fx.registry import Registry

Pass: TypeAlias = Callable[[GraphModule], GraphModule | None]
"""A pass: it edits its argument, or returns another program."""

Definition = TypeVar("Definition", bound=Callable[..., Any])

ENTRY_POINTS = "fx.passes"
"""The group of entry points under which installed packages offer passes."""

_ROOMS = {"lower": "fx.lowering", "quantize": "fx.quantize"}
"""The packages to import for passes that are defined above this one, by name of the pass."""

# Classes of passes, and functions that are passes.
_definitions: Registry[Callable[..., Any]] = Registry("pass", "passes", PassError)


def register_pass(definition: Definition) -> Definition:
    """Register a pass under its name; use it as a decorator of a pass class or of a plain function.

    A class is registered under its attribute ``name``. The fields of a dataclass are the options that :func:`get_pass`
    can set; from now on its constructor refuses values of other types. A function ``fuse_gelu`` is registered as
    ``"fuse-gelu"``, unless it has an attribute ``name``. Raises :class:`~fx.errors.PassError` if the name is taken by
    another definition, or if ``definition`` is not a pass.

    >>> @register_pass
    ... def leave_as_it_is(graph_module):
    ...     return graph_module
    >>> get_pass("leave-as-it-is") is leave_as_it_is
    True
    """
    if not callable(cast("object", definition)) or isinstance(definition, nn.Module):
        raise PassError(
            f"{type_in_words(definition)} is not a pass",
            value=shown(definition),
            remedy="register a function from GraphModule to GraphModule, or a class of passes",
        )
    _import_room(pass_name(definition))
    _definitions.register(pass_name(definition), definition)
    pass_class: Any = definition
    if isinstance(pass_class, type) and dataclasses.is_dataclass(pass_class):
        check_construction(pass_class, PassError)
    return definition


@checked(PassError)
def get_pass(name: str) -> Pass:
    """Return the pass registered as ``name``, with options in braces after the name, if any.

    A name that is not registered is searched for among the entry points of installed packages. Raises
    :class:`~fx.errors.PassError` for an unknown name, with the nearest names, or for a wrong option, with its place.

    >>> get_pass("fuse-conv-bn").name
    'fuse-conv-bn'
    """
    if not re.search(r"[{},]", name):
        return pass_as_written(PassText(name, (), 0, name))
    written = parse_text(name)
    if len(written) != 1:
        refuse(name, written[1].start, "get_pass makes one pass", remedy="use parse_pipeline for several")
    return pass_as_written(written[0])


@checked(PassError)
def parse_pipeline(text: str) -> list[Pass]:
    """Return the passes that ``text`` names, each with its options: ``"fuse-conv-bn,split{at=layer3}"``.

    Options have the names of the fields, with dashes or underscores, and are parsed by the fields' types: ``true`` and
    ``false`` (or the name alone), numbers, words, ``none``, one of the choices of a ``Literal``, and tuples joined by
    ``+``. Raises :class:`~fx.errors.PassError` that points at the place in ``text``.

    >>> [pass_name(pass_) for pass_ in parse_pipeline("fuse-conv-bn, remove-dead-code")]
    ['fuse-conv-bn', 'remove-dead-code']
    """
    return [pass_as_written(written) for written in parse_text(text)]


def list_passes() -> list[str]:
    """Return the names of all passes, registered or offered by installed packages, in alphabetical order."""
    return sorted({*_definitions.names(), *_ROOMS, *_entry_points()})


@checked(PassError)
def describe_pass(name: str) -> str:
    """Return the help for the pass registered as ``name``: its description, its contract and its options.

    >>> print(describe_pass("remove-dead-code").splitlines()[0].partition(":")[0])
    remove-dead-code
    """
    definition = _find(name)
    doc = (inspect.getdoc(definition) or "not documented").partition("\n\n")[0]
    is_computed = isinstance(getattr(definition, "contract", None), property)
    contract = "depends on the options" if is_computed else contract_of(definition)
    lines = [f"{name}: {' '.join(doc.split())}", f"  contract  {contract}"]
    lines += [f"  option    {option}" for option in options_of(definition)]
    return "\n".join(lines)


def write_pass(pass_: object) -> str:
    """Return ``pass_`` as text for :func:`parse_pipeline`: its name, and the options that differ from the defaults."""
    return pass_name(pass_) + write_options(pass_)


def pass_name(pass_: object) -> str:
    """Return the name of a pass, or of a pass class, for messages and tables.

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


def pass_as_written(written: PassText) -> Pass:
    """Return the registered pass for one part of a text, with its options; raise ``PassError`` if there is none."""
    try:
        definition = _find(written.name)
    except PassError as error:
        if written.text != written.name:
            add_note(error, f"at character {written.start + 1} of {written.text!r}")
        raise
    if isinstance(definition, type):
        return cast("Pass", make_pass(definition, written))
    if written.options:
        what = f"pass {written.name!r} takes no options"
        refuse(written.text, written.options[0].start, what, why="it is not a class of passes but one pass")
    return definition


def _find(name: str) -> Callable[..., Any]:
    """Return the definition registered as ``name``, or offered under that name by an installed package."""
    _import_room(name)
    if name in _definitions.names():
        return _definitions.get(name)
    offered = _entry_points()
    if name in offered:
        _load(name, offered[name])
        return _definitions.get(name)
    registry = _definitions.copy()
    for other in (offered.keys() | _ROOMS) - {*_definitions.names()}:
        registry.register(other, offered.get)  # for the list of nearest names
    return registry.get(name)


def _import_room(name: str) -> None:
    """Import the package that registers the pass ``name``, if it is one of ``_ROOMS``."""
    if name in _ROOMS:
        importlib.import_module(_ROOMS[name])


def _entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    """Return the passes that installed packages offer, by name, without importing them."""
    by_name: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        others = by_name.setdefault(entry_point.name, [])
        if all(entry_point.value != other.value for other in others):  # a package may be listed twice
            others.append(entry_point)
    return by_name


def _load(name: str, offered: list[importlib.metadata.EntryPoint]) -> None:
    """Import the definition that is offered as ``name``, and register it."""
    described = " and ".join(map(_describe, offered))
    if len(offered) > 1:
        raise PassError(f"two packages offer a pass named {name!r}", value=described, remedy="uninstall one of them")
    try:
        definition = offered[0].load()
    except Exception as error:
        raise PassError(
            f"the pass {name!r} cannot be imported",
            value=described,
            why=f"{type(error).__name__}: {error}",
            remedy="update or uninstall that package",
        ) from error
    if not callable(definition) or pass_name(definition) != name:
        own = f"is called {pass_name(definition)!r}" if callable(definition) else "cannot be called"
        raise PassError(
            f"the entry point {name!r} is not a pass of that name",
            value=described,
            why=f"the object that it refers to {own}",
            remedy="give the entry point the name of the pass class or function that it refers to",
        )
    register_pass(definition)


def _describe(entry_point: importlib.metadata.EntryPoint) -> str:
    package = entry_point.dist
    version = f" {package.version}" if package is not None else ""
    return f"{package.name if package is not None else 'an unknown package'}{version} ({entry_point.value})"
