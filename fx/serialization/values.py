"""Arguments and other values of a program as JSON and back, a tag for each kind of value.

``null``, booleans, integers of 64 bits, finite floats, strings and lists are themselves in JSON. Any other value is an
object with its tag as the only key: ``{"node": 3}``, ``{"tuple": [...]}``, ``{"dtype": "float32"}``. Functions and
classes are names that :mod:`fx.serialization.allow_list` resolves.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import torch

from fx.container_kinds import ContainerKind, held_kind, kind_by_tag
from fx.errors import type_in_words, with_article
from fx.node import Node
from fx.serialization.allow_list import Refused, find, find_class, name_of

Json: TypeAlias = Any
T = TypeVar("T")

TensorIndex: TypeAlias = Callable[[torch.Tensor, str], int]
"""A function that returns the number by which the file refers to a tensor, from the tensor and a path to it."""

DEPTH = 64
"""The largest depth of nested values."""
LONGEST_NAME = 1000
"""The largest length of the name of a node or attribute in a file, in characters."""

_MOST_TAGGED_KEYS = 1000
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_HEXADECIMAL = re.compile(r"-?(0x)?[0-9a-f]+")
_INT64 = range(-(1 << 63), 1 << 63)


class ValueWriter:
    """The writer of values as JSON; it raises ``Refused`` for values that are not data."""

    def __init__(self, index: TensorIndex | None = None, numbers: dict[Node, int] | None = None) -> None:
        """Create a writer; values may hold tensors only if there is an ``index``, and only nodes of ``numbers``."""
        self.index = index
        self._numbers = {} if numbers is None else numbers

    def value(self, value: Any, depth: int = 0) -> Json:
        """Return ``value`` as JSON."""
        cls = type(value)
        if cls is str or cls is bool or value is None:
            return value
        if depth > DEPTH and cls is not Node:
            raise Refused(f"a value nests more than {DEPTH} levels deep")
        if (cls is int and value in _INT64) or (cls is float and math.isfinite(value)):
            return value
        kind = _BY_CLASS.get(cls)
        if kind is None and (container := held_kind(value)) is not None and container.tag is not None:
            return self._container(container, value, depth + 1)
        if kind is None and (kind := next((kind for kind in _OTHERS if kind.is_of(value)), None)) is None:
            raise Refused(
                with_article(f"{cls.__module__}.{cls.__qualname__} is not data"),
                remedy="make it an input of the program, or compute it in a function: fx.serialization.allow(function)",
            )
        return {kind.tag: kind.encode(self, value, depth + 1)}

    def _container(self, kind: ContainerKind, value: Any, depth: int) -> Json:
        parts = kind.parts(value)
        stored = self._pairs(kind.labels(value), parts, depth) if kind.is_keyed else self._items(parts, depth)
        if kind.tag == "list":
            return stored
        return {kind.tag: [name_of(type(value)), stored] if kind.family is not None else stored}

    def _items(self, values: Iterable[Any], depth: int) -> list[Json]:
        return [self.value(value, depth) for value in values]

    def _pairs(self, labels: Iterable[Any], parts: Iterable[Any], depth: int) -> list[Json]:
        return [[self.value(label, depth), self.value(part, depth)] for label, part in zip(labels, parts, strict=True)]

    def _elements(self, values: Any, depth: int) -> list[Json]:
        return sorted(self._items(values, depth), key=json.dumps)  # in an order that does not depend on hashes

    def _node(self, node: Node, depth: int) -> int:
        if node not in self._numbers:
            raise Refused(f"node {node} is used where it is not computed yet")
        return self._numbers[node]

    def _tensor(self, tensor: torch.Tensor, depth: int) -> int:
        if self.index is None:
            raise Refused("a tensor is at a place for plain values only")
        return self.index(tensor, "constant")

    def _member(self, value: enum.Enum, depth: int) -> Json:
        member = value._name_
        if type(member) is not str or type(value).__members__.get(member) is not value:
            raise Refused(f"{value!r} is not a named member of its enum")
        return [name_of(type(value)), member]


class NoteWriter(ValueWriter):
    """A writer that leaves out the entries of dicts that it cannot store, and writes unlisted classes as strings."""

    def value(self, value: Any, depth: int = 0) -> Json:
        """Return ``value`` as JSON."""
        try:
            return super().value(value, depth)
        except Refused:
            if not isinstance(value, type):
                raise
            return f"{value.__module__}.{value.__qualname__}"

    def _pairs(self, labels: Iterable[Any], parts: Iterable[Any], depth: int) -> list[Json]:
        pairs: dict[str, Json] = {}  # two classes may become one string
        for label, part in zip(labels, parts, strict=True):
            with contextlib.suppress(Refused):
                key = self.value(label, depth)
                pairs[json.dumps(key)] = [key, self.value(part, depth)]
        return list(pairs.values())


class ValueReader:
    """The reader of values from JSON; it raises ``Refused`` for JSON that is not a value."""

    def __init__(self, tensors: list[torch.Tensor], nodes: list[Node] | None = None) -> None:
        """Create a reader; values may refer to ``tensors``, and to ``nodes``, a list that grows meanwhile."""
        self._tensors = tensors
        self._nodes: list[Node] = [] if nodes is None else nodes

    def value(self, stored: Json, depth: int = 0) -> Any:
        """Return the value that ``stored`` describes."""
        cls = type(stored)
        if cls is str or cls is int or cls is bool or stored is None:
            return stored
        if cls is float:
            if not math.isfinite(stored):
                raise Refused("a number is out of range")
            return stored
        if depth > DEPTH + 1:
            raise Refused(f"a value nests more than {DEPTH} levels deep")
        if cls is list:
            return [self.value(item, depth + 1) for item in stored]
        if len(stored) == 1:
            ((tag, content),) = stored.items()
            if (kind := _BY_TAG.get(tag)) is not None:
                return kind.decode(self, content, depth + 1)
            if (container := kind_by_tag(tag)) is not None:
                return self._container(container, content, depth + 1)
        raise Refused(f"an object with the keys {shown(list(stored))} is not a value")

    def items(self, stored: Json, depth: int) -> list[Any]:
        """Return the values in a list."""
        if type(stored) is not list:
            raise Refused(f"a list is expected, not {shown(stored)}")
        return [self.value(item, depth) for item in stored]

    def _container(self, kind: ContainerKind, stored: Json, depth: int) -> Any:
        if kind.is_keyed:
            pairs = self._pairs(stored, depth)
            return kind.rebuild(pairs, list(pairs.values()))
        parts = self.items(stored, depth)
        try:
            container = kind.rebuild(parts, parts)
            if len(kind.parts(container)) == len(parts):
                return container
        except Exception:  # the class may be the user's
            pass
        raise Refused(f"a {kind.tag} is not made of {len(parts)} values")

    def _pairs(self, stored: Json, depth: int) -> dict[Any, Any]:
        if type(stored) is not list or not all(type(pair) is list and len(pair) == 2 for pair in stored):
            raise Refused("a dict is not a list of pairs")
        _check_keys([key for key, _ in stored])
        pairs = {self._hashable(key, depth): self.value(item, depth) for key, item in stored}
        if len(pairs) != len(stored):
            raise Refused("a dict has a key twice")
        return pairs

    def _hashable(self, stored: Json, depth: int) -> Any:
        value = self.value(stored, depth)
        try:
            hash(value)
        except TypeError as error:
            raise Refused(f"{type_in_words(value)} is a key of a dict or an element of a set") from error
        return value

    def _text(self, stored: Json, depth: int) -> str:
        if type(stored) is not str:
            raise Refused(f"a string is expected, not {shown(stored)}")
        return stored

    def _integers(self, stored: Json, depth: int, count: int | None = None) -> list[int]:
        if type(stored) is list and count in (None, len(stored)):
            integers = [self.value(number) if type(number) is dict else number for number in stored]
            if all(type(number) is int for number in integers):
                return integers
        raise Refused(f"{shown(stored)} are not the integers that are expected")

    def _elements(self, stored: Json, depth: int) -> set[Any]:
        if type(stored) is not list:
            raise Refused("a set is not a list of its elements")
        _check_keys(stored)
        return {self._hashable(item, depth) for item in stored}

    def _member(self, stored: Json, depth: int) -> Any:
        owner, member = pair(stored)
        kind = find_class(owner)
        if not issubclass(kind, enum.Enum) or type(member) is not str or member not in kind.__members__:
            raise Refused(f"{shown(owner)} is not an enum with a member {shown(member)}")
        return kind.__members__[member]

    def _named_tuple(self, stored: Json, depth: int) -> Any:
        owner, parts = pair(stored)
        kind: Any = find_class(owner)
        values = self.items(parts, depth)
        fields = getattr(kind, "_fields", None)
        if not issubclass(kind, tuple) or type(fields) is not tuple or len(values) != len(fields):
            raise Refused(f"{shown(owner)} is not a named tuple of {len(values)} values")
        return kind(*values)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The form of one kind of value in files: an object whose only key is the tag."""

    tag: str
    """The key."""
    is_of: type | Callable[[Any], bool]
    """The class of the values, without subclasses; or a check for values whose class has no row."""
    encode: Callable[[ValueWriter, Any, int], Json]
    """The function that returns the JSON for the key."""
    read: Callable[[ValueReader, Json, int], Any]
    """The function that returns the value, or its parts for ``make``, and refuses JSON of another form."""
    make: Callable[[Any], Any] | None = None
    """The function that returns the value of these parts, or raises an error if they are out of its limits."""
    limit: str = ""
    """The message about the limit, with braces for the JSON."""

    def decode(self, reader: ValueReader, stored: Json, depth: int) -> Any:
        """Return the value for the JSON of the key."""
        parts = self.read(reader, stored, depth)
        try:
            return parts if self.make is None else self.make(parts)
        except (LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise Refused(self.limit.format(shown(stored))) from error


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("out of limits")


def _integer(text: str) -> int:
    _require(_HEXADECIMAL.fullmatch(text) is not None)
    return int(text, 16)


def _complex(parts: list[Any]) -> complex:
    _require(len(parts) == 2 and all(type(part) is float for part in parts))
    return complex(*parts)


def _size(sizes: list[int]) -> torch.Size:
    _require(all(size in _INT64 for size in sizes))
    return torch.Size(sizes)


def _constant(tag: str, kind: type) -> ValueKind:
    """Return a row for constants of torch, which are stored by name."""

    def make(name: str) -> Any:
        value = getattr(torch, name, None) if name.isidentifier() else None
        _require(isinstance(value, kind))
        return value

    limit = f"{{}} is not {with_article(tag)}"
    return ValueKind(tag, kind, lambda w, v, d: str(v).removeprefix("torch."), ValueReader._text, make, limit)


def _no_getattr(value: T) -> T:
    if value is getattr:
        raise Refused("the function getattr is used as a value")
    return value


VALUE_KINDS: tuple[ValueKind, ...] = (
    ValueKind("node", Node, ValueWriter._node,
              lambda r, s, d: entry(r._nodes, s, "node number {} is used before it is computed")),
    ValueKind("tensor", lambda value: isinstance(value, torch.Tensor), ValueWriter._tensor,
              lambda r, s, d: entry(r._tensors, s, "there is no tensor number {}")),
    ValueKind("int", int, lambda w, v, d: hex(v), ValueReader._text, _integer, "an integer is not in base 16"),
    ValueKind("float", float, lambda w, v, d: str(v), ValueReader._text, _FLOATS.__getitem__, "{} is not a number"),
    ValueKind("complex", complex, lambda w, v, d: w._items((v.real, v.imag), d), ValueReader.items, _complex,
              "a complex number is not two floats"),
    ValueKind("set", set, ValueWriter._elements, ValueReader._elements),
    ValueKind("frozenset", frozenset, ValueWriter._elements, ValueReader._elements, frozenset),
    ValueKind("size", torch.Size, ValueWriter._items, ValueReader._integers, _size, "a size is out of range"),
    ValueKind("range", range, lambda w, v, d: w._items((v.start, v.stop, v.step), d),
              lambda r, s, d: r._integers(s, d, 3), lambda parts: range(*parts), "a range has the step 0"),
    ValueKind("bytes", bytes, lambda w, v, d: base64.b64encode(v).decode("ascii"), ValueReader._text,
              lambda text: base64.b64decode(text, validate=True), "bytes are not in base 64"),
    ValueKind("ellipsis", type(Ellipsis), lambda w, v, d: True, lambda r, s, d: Ellipsis),
    ValueKind("device", torch.device, lambda w, v, d: str(v), ValueReader._text, torch.device, "{} is not a device"),
    _constant("dtype", torch.dtype),
    _constant("layout", torch.layout),
    _constant("memory_format", torch.memory_format),
    ValueKind("enum", lambda value: isinstance(value, enum.Enum), ValueWriter._member, ValueReader._member),
    # written as a container
    ValueKind("namedtuple", lambda value: False, ValueWriter._items, ValueReader._named_tuple),
    ValueKind("name", lambda value: isinstance(value, type) or callable(value),
              lambda w, v, d: name_of(_no_getattr(v)), lambda r, s, d: _no_getattr(find(s))),
)  # fmt: skip
"""Every kind of value except containers (:mod:`fx.container_kinds`) and JSON's own."""
_BY_TAG = {kind.tag: kind for kind in VALUE_KINDS}
_BY_CLASS: dict[Any, ValueKind] = {kind.is_of: kind for kind in VALUE_KINDS}
_OTHERS = [kind for kind in VALUE_KINDS if not isinstance(kind.is_of, type)]


def is_name(text: object) -> bool:
    """Return whether ``text`` can name a node, class or attribute: short and printable."""
    return type(text) is str and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _check_keys(keys: list[Json]) -> None:
    """Refuse many keys whose hashes a file can choose: a dict with equal hashes takes quadratic time."""
    if sum(type(key) is dict for key in keys) > _MOST_TAGGED_KEYS:
        raise Refused(f"a dict or set has more than {_MOST_TAGGED_KEYS} keys that are not plain numbers or strings")


def entry(table: list[T], number: Json, missing: str) -> T:
    """Return the entry of that number; ``missing`` is the message if there is none, with braces for the number."""
    if type(number) is not int or not 0 <= number < len(table):
        raise Refused(missing.format(shown(number)))
    return table[number]


def stored_object(
    stored: Json, what: str, required: Mapping[str, type], optional: Mapping[str, Any] | None = None
) -> dict[str, Json]:
    """Return the parts of an object; refuse other JSON.

    Args:
        stored: the JSON.
        what: the words for it in a message.
        required: the type of each part that it must have; ``object`` for any.
        optional: the default of each part that it may lack. Another value is of the same type, unless that is None.
    """
    defaults = optional or {}
    if type(stored) is not dict or not required.keys() <= stored.keys():
        raise Refused(f"{what} is not an object with {', '.join(sorted(required))}")
    if not stored.keys() <= required.keys() | defaults.keys():
        raise Refused(f"{what} has parts that are unknown")
    for name, part in stored.items():
        kind = required[name] if name in required else type(defaults[name])
        if type(part) is not kind and kind not in (object, NoneType):
            raise Refused(f"the part {name!r} of {what} is not {with_article(kind.__name__)}")
    return {**defaults, **stored}


def stored_strings(stored: Json) -> tuple[str, ...]:
    """Return ``stored`` as strings; refuse other values."""
    if type(stored) is not list or not all(type(text) is str for text in stored):
        raise Refused("a list of strings is something else")
    return tuple(stored)


def pair(stored: Json) -> list[Json]:
    """Return ``stored`` as a list of two; refuse other values."""
    if type(stored) is not list or len(stored) != 2:
        raise Refused(f"a pair is expected, not {shown(stored)}")
    return stored


def shown(stored: Json) -> str:
    """Return a part of a file for a message: short and printable."""
    text = ascii(stored) if isinstance(stored, (str, int, float, bool, type(None))) else type_in_words(stored)
    return text if len(text) <= 80 else f"{text[:80]}…"


def printable(text: str) -> str:
    """Return ``text`` for messages and listings, with blanks for characters that move the cursor or end a line."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
