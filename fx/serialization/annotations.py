"""Type annotations as JSON and back: names of classes, and generics of ``typing`` and of the builtins around them."""

from __future__ import annotations

import functools
import keyword
import operator
import re
import sys
import typing
from types import GenericAlias, UnionType
from typing import Any

from fx.serialization.allow_list import Refused, find_class, name_of
from fx.serialization.values import DEPTH, Json, ValueReader, ValueWriter, pair, printable, shown
from fx.tensor_type import Dyn, TensorType

_MOST_PARTS = 256

_GENERICS: dict[str, Any] = {
    name: getattr(typing, name)
    for name in (
        "Callable Dict FrozenSet Iterable Iterator List Mapping Optional Sequence Set Tuple Type Union".split()
    )
}
_ORIGINS: dict[Any, str] = {typing.get_origin(value) or value: name for name, value in _GENERICS.items()}
_PLAIN = ValueWriter()
_LONGEST_TEXT = 1000
# Code that resolves annotations, such as typing.get_type_hints, evaluates them. Text of these characters calls nothing,
# and without keywords it repeats nothing.
_RUNS_NOTHING = re.compile(r"[\w.,|\[\] '\"-]*")
_WORD = re.compile(r"\w+")
_KEYWORDS = frozenset(keyword.kwlist) - {"None", "True", "False"}


def encode_annotation(hint: Any, depth: int = 0) -> Json:
    """Return ``hint`` as JSON."""
    if depth > DEPTH:
        raise Refused(f"an annotation nests more than {DEPTH} levels deep")
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if type(hint) is str:
        _check_text(hint)
    if hint is None or hint is Ellipsis or type(hint) is str:
        return _PLAIN.value(hint)
    if hint is Any:
        return {"generic": ["Any", []]}
    if hint is Dyn:
        return {"generic": ["Dyn", []]}
    if isinstance(hint, TensorType):
        return {"generic": ["TensorType", [None if size is Dyn else str(size) for size in hint.dims]]}
    if isinstance(hint, list):  # the parameters of a Callable
        return [encode_annotation(part, depth + 1) for part in hint]
    origin = typing.get_origin(hint)
    args = [encode_annotation(part, depth + 1) for part in typing.get_args(hint)] if origin is not None else []
    if isinstance(hint, UnionType):
        return {"generic": ["|", args]}
    if isinstance(hint, GenericAlias) and isinstance(origin, type):
        return {"generic": [f"class {name_of(origin)}", args]}
    if isinstance(hint, type):
        return {"name": name_of(hint)}
    generic = next((name for kind, name in _ORIGINS.items() if kind is (hint if origin is None else origin)), None)
    if generic is not None:
        return {"generic": [generic, args]}
    if callable(hint):
        return {"name": name_of(hint)}
    raise Refused(f"the annotation {hint!r} is none that a file can name")


def decode_annotation(stored: Json, depth: int = 0) -> Any:
    """Return the annotation that ``stored`` describes."""
    if depth > DEPTH + 1:
        raise Refused(f"an annotation nests more than {DEPTH} levels deep")
    if type(stored) is list:
        return [decode_annotation(part, depth + 1) for part in stored]
    if type(stored) is not dict or stored.keys() != {"generic"}:
        hint = ValueReader([]).value(stored)
        if type(hint) is str:
            _check_text(hint)
            return sys.intern(hint)  # generated code has one global for each string object
        if hint is None or hint is Ellipsis or isinstance(hint, type) or callable(hint):
            return hint
        raise Refused(f"{shown(stored)} is not an annotation")
    name, parts = pair(stored["generic"])
    if type(name) is not str or type(parts) is not list or len(parts) > _MOST_PARTS:
        raise Refused("a generic type is not a name and a list")
    return _generic(name, [decode_annotation(part, depth + 1) for part in parts])


def _check_text(text: str) -> None:
    if len(text) > _LONGEST_TEXT:
        raise Refused(f"an annotation is a text of more than {_LONGEST_TEXT:,} characters")
    if not _RUNS_NOTHING.fullmatch(text) or not _KEYWORDS.isdisjoint(_WORD.findall(text)):
        raise Refused(
            f"the annotation {shown(text)} is more than names of types",
            why="annotations that are strings are evaluated by whoever asks for their types",
            remedy="node.type = None, or the type itself",
        )


def _generic(name: str, args: list[Any]) -> Any:
    try:
        if name == "Any":
            return Any
        if name == "Dyn" and not args:
            return Dyn
        if name == "TensorType" and all(size is None or type(size) is str for size in args):
            return TensorType([Dyn if size is None else int(size) if size.isdecimal() else size for size in args])
        if name == "|":
            return functools.reduce(operator.or_, args)
        if name.startswith("class "):
            return GenericAlias(find_class(name.removeprefix("class ")), tuple(args))
        if (generic := _GENERICS.get(name)) is not None:
            return generic[tuple(args) if len(args) != 1 else args[0]] if args else generic
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"{shown(name)} of these types is not an annotation", why=printable(str(error))) from error
    raise Refused(f"there is no generic type {shown(name)}")
