"""Arguments and other values of a program as JSON and back, a tag for each kind of value.

``null``, booleans, integers of 64 bits, finite floats, strings and lists stand for themselves. Everything else is an
object with one key that says what it is: ``{"node": 3}``, ``{"tuple": [...]}``, ``{"dtype": "float32"}``. Functions and
classes are names that :mod:`fx.serialization.allow_list` resolves.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from fx.container_kinds import ContainerKind, held_kind, kind_by_tag
from fx.errors import type_in_words, with_article
from fx.node import Node
from fx.serialization.allow_list import Refused, find, find_class, name_of

Json: TypeAlias = Any
T = TypeVar("T")

DEPTH = 64
"""How deep values may nest."""
LONGEST_NAME = 1000
"""Most characters that the name of a node or attribute may have in a file."""

_MOST_TAGGED_KEYS = 1000

_TORCH_VALUES: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class TensorPlaces(Protocol):
    """Where tensors are while values are written."""

    def index(self, tensor: torch.Tensor, path: str) -> int:
        """The number by which the file refers to ``tensor``."""
        ...


class ValueWriter:
    """Writes values as JSON; raises ``Refused`` for what is not data."""

    def __init__(self, tensors: TensorPlaces | None, numbers: dict[Node, int] | None = None) -> None:
        """Write values that hold no tensors if ``tensors`` is None, and no nodes but those of ``numbers``."""
        self._tensors = tensors
        self._numbers = {} if numbers is None else numbers

    def value(self, value: Any, depth: int = 0) -> Json:
        """``value`` as JSON."""
        kind = type(value)
        if kind is Node:
            if value not in self._numbers:
                raise Refused(f"node {value} is used where it is not computed yet")
            return {"node": self._numbers[value]}
        if kind is str or kind is bool or value is None:
            return value
        if depth > DEPTH:
            raise Refused(f"a value nests more than {DEPTH} levels deep")
        if (write := _WRITERS.get(kind)) is not None:
            return write(self, value, depth + 1)
        if (container := held_kind(value)) is not None and container.tag is not None:
            return self._container(container, value, depth + 1)
        return self._by_class(value, depth + 1)

    def _by_class(self, value: Any, depth: int) -> Json:
        if isinstance(value, enum.Enum):
            member = value._name_
            if type(member) is not str or type(value).__members__.get(member) is not value:
                raise Refused(f"{value!r} is not a named member of its enum")
            return {"enum": [name_of(type(value)), member]}
        if isinstance(value, torch.Tensor):
            if self._tensors is None:
                raise Refused("a tensor stands where only plain values can")
            return {"tensor": self._tensors.index(value, "constant")}
        for name, torch_kind in _TORCH_VALUES.items():
            if isinstance(value, torch_kind):
                return {name: str(value).removeprefix("torch.")}
        if isinstance(value, type) or callable(value):
            if value is getattr:
                raise Refused("the function getattr stands as a value")
            return {"name": name_of(value)}
        raise Refused(
            with_article(f"{type(value).__module__}.{type(value).__qualname__} is not data"),
            remedy="make it an input of the program, or compute it in a function: fx.serialization.allow(function)",
        )

    def _int(self, value: int, depth: int) -> Json:
        return value if -(1 << 63) <= value < 1 << 63 else {"int": hex(value)}

    def _float(self, value: float, depth: int) -> Json:
        if math.isfinite(value):
            return value
        return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}

    def _container(self, kind: ContainerKind, value: Any, depth: int) -> Json:
        stored = self._items(kind.parts(value), depth)
        if kind.is_keyed:
            stored = [list(pair) for pair in zip(self._items(kind.labels(value), depth), stored, strict=True)]
        if kind.tag == "list":
            return stored
        return {kind.tag: [name_of(type(value)), stored] if kind.family is not None else stored}

    def _items(self, value: Iterable[Any], depth: int) -> list[Json]:
        return [self.value(item, depth) for item in value]

    def _set(self, value: Any, depth: int) -> list[Json]:
        return sorted(self._items(value, depth), key=json.dumps)  # in an order that does not depend on hashes


def _tagged(tag: str, write: Callable[[ValueWriter, Any, int], Json]) -> Callable[[ValueWriter, Any, int], Json]:
    return lambda writer, value, depth: {tag: write(writer, value, depth)}


_WRITERS: dict[type, Callable[[ValueWriter, Any, int], Json]] = {
    int: ValueWriter._int,
    float: ValueWriter._float,
    set: _tagged("set", ValueWriter._set),
    frozenset: _tagged("frozenset", ValueWriter._set),
    range: _tagged("range", lambda w, v, d: w._items((v.start, v.stop, v.step), d)),
    complex: _tagged("complex", lambda w, v, d: w._items((v.real, v.imag), d)),
    bytes: _tagged("bytes", lambda w, v, d: base64.b64encode(v).decode("ascii")),
    type(Ellipsis): _tagged("ellipsis", lambda w, v, d: True),
    torch.device: _tagged("device", lambda w, v, d: str(v)),
}


class ValueReader:
    """Makes values of JSON; raises ``Refused`` for what is not a value."""

    def __init__(self, tensors: list[torch.Tensor], nodes: list[Node] | None = None) -> None:
        """Read values that may refer to ``tensors``, and to ``nodes``, a list that grows meanwhile."""
        self._tensors = tensors
        self._nodes: list[Node] = [] if nodes is None else nodes

    def value(self, stored: Json, depth: int = 0) -> Any:
        """The value that ``stored`` stands for."""
        kind = type(stored)
        if kind is str or kind is int or kind is bool or stored is None:
            return stored
        if kind is float:
            if not math.isfinite(stored):
                raise Refused("a number is out of range")
            return stored
        if depth > DEPTH + 1:
            raise Refused(f"a value nests more than {DEPTH} levels deep")
        if kind is list:
            return [self.value(item, depth + 1) for item in stored]
        if len(stored) == 1:
            ((tag, payload),) = stored.items()
            if (read := _READERS.get(tag)) is not None:
                return read(self, payload, depth + 1)
            if (container := kind_by_tag(tag)) is not None:
                return self._container(container, payload, depth + 1)
        raise Refused(f"an object with the keys {shown(list(stored))} stands for no value")

    def items(self, stored: Json, depth: int) -> list[Any]:
        """The values in a list."""
        if type(stored) is not list:
            raise Refused(f"a list is expected, not {shown(stored)}")
        return [self.value(item, depth) for item in stored]

    def _container(self, kind: ContainerKind, stored: Json, depth: int) -> Any:
        if kind.is_keyed:
            made = self._pairs(stored, depth)
            return kind.rebuild(made, list(made.values()))
        parts = self.items(stored, depth)
        try:
            made = kind.rebuild(parts, parts)
            if len(kind.parts(made)) == len(parts):
                return made
        except Exception:  # the class may be the user's
            pass
        raise Refused(f"a {kind.tag} is not made of {len(parts)} values")

    def _node(self, stored: Json, depth: int) -> Node:
        return entry(self._nodes, stored, "node number {} is used before it is computed")

    def _tensor(self, stored: Json, depth: int) -> torch.Tensor:
        return entry(self._tensors, stored, "there is no tensor number {}")

    def _int(self, stored: Json, depth: int) -> int:
        text = _text(stored)
        digits = text.removeprefix("-").removeprefix("0x")
        if not digits or not set(digits) <= set("0123456789abcdef"):
            raise Refused("an integer is not in base 16")
        return int(digits, 16) * (-1 if text.startswith("-") else 1)

    def _float(self, stored: Json, depth: int) -> float:
        if (value := _FLOATS.get(_text(stored))) is None:
            raise Refused(f"{shown(stored)} is not a number")
        return value

    def _complex(self, stored: Json, depth: int) -> complex:
        parts = self.items(stored, depth)
        if len(parts) != 2 or not all(type(part) is float for part in parts):
            raise Refused("a complex number is not two floats")
        return complex(*parts)

    def _integers(self, stored: Json, count: int | None = None) -> list[int]:
        if type(stored) is not list or (count is not None and len(stored) != count):
            raise Refused(f"{shown(stored)} are not the integers that are expected")
        integers = [self.value(item) if type(item) is dict else item for item in stored]
        if not all(type(integer) is int for integer in integers):
            raise Refused(f"{shown(stored)} are not the integers that are expected")
        return integers

    def _range(self, stored: Json, depth: int) -> range:
        start, stop, step = self._integers(stored, 3)
        if step == 0:
            raise Refused("a range has the step 0")
        return range(start, stop, step)

    def _size(self, stored: Json, depth: int) -> torch.Size:
        sizes = self._integers(stored)
        if not all(-(1 << 63) <= size < 1 << 63 for size in sizes):
            raise Refused("a size is out of range")
        return torch.Size(sizes)

    def _pairs(self, stored: Json, depth: int) -> dict[Any, Any]:
        if type(stored) is not list or not all(type(pair) is list and len(pair) == 2 for pair in stored):
            raise Refused("a dict is not a list of pairs")
        _check_keys([key for key, _ in stored])
        made: dict[Any, Any] = {}
        for key, item in stored:
            made[self._hashable(key, depth)] = self.value(item, depth)
        if len(made) != len(stored):
            raise Refused("a dict has a key twice")
        return made

    def _hashable(self, stored: Json, depth: int) -> Any:
        value = self.value(stored, depth)
        try:
            hash(value)
        except TypeError as error:
            raise Refused(f"{type_in_words(value)} is a key of a dict or an element of a set") from error
        return value

    def _set(self, stored: Json, depth: int) -> set[Any]:
        if type(stored) is not list:
            raise Refused("a set is not a list of its elements")
        _check_keys(stored)
        return {self._hashable(item, depth) for item in stored}

    def _bytes(self, stored: Json, depth: int) -> bytes:
        try:
            return base64.b64decode(_text(stored), validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused("bytes are not in base 64") from error

    def _device(self, stored: Json, depth: int) -> torch.device:
        try:
            return torch.device(_text(stored))
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise Refused(f"{shown(stored)} is not a device") from error

    def _name(self, stored: Json, depth: int) -> Any:
        value = find(stored)
        if value is getattr:
            raise Refused("the function getattr stands as a value")
        return value

    def _enum(self, stored: Json, depth: int) -> Any:
        owner, member = pair(stored)
        kind = find_class(owner)
        if not issubclass(kind, enum.Enum) or type(member) is not str or member not in kind.__members__:
            raise Refused(f"{shown(owner)} is not an enum with a member {shown(member)}")
        return kind.__members__[member]

    def _namedtuple(self, stored: Json, depth: int) -> Any:
        owner, parts = pair(stored)
        kind: Any = find_class(owner)
        values = self.items(parts, depth)
        fields = getattr(kind, "_fields", None)
        if not issubclass(kind, tuple) or type(fields) is not tuple or len(values) != len(fields):
            raise Refused(f"{shown(owner)} is not a named tuple of {len(values)} values")
        return kind(*values)


def _torch_value(tag: str) -> Callable[[ValueReader, Json, int], Any]:
    def read(reader: ValueReader, stored: Json, depth: int) -> Any:
        value = getattr(torch, _text(stored), None) if _text(stored).isidentifier() else None
        if not isinstance(value, _TORCH_VALUES[tag]):
            raise Refused(f"{shown(stored)} is not {with_article(tag)}")
        return value

    return read


_READERS: dict[str, Callable[[ValueReader, Json, int], Any]] = {
    "node": ValueReader._node,
    "tensor": ValueReader._tensor,
    "int": ValueReader._int,
    "float": ValueReader._float,
    "complex": ValueReader._complex,
    "set": ValueReader._set,
    "frozenset": lambda r, s, d: frozenset(r._set(s, d)),
    "size": ValueReader._size,
    "range": ValueReader._range,
    "bytes": ValueReader._bytes,
    "ellipsis": lambda r, s, d: Ellipsis,
    "device": ValueReader._device,
    "name": ValueReader._name,
    "enum": ValueReader._enum,
    "namedtuple": ValueReader._namedtuple,
    **{tag: _torch_value(tag) for tag in _TORCH_VALUES},
}


def is_name(text: object) -> bool:
    """Return whether ``text`` can name a node, class or attribute: short and printable."""
    return type(text) is str and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _check_keys(keys: list[Json]) -> None:
    """Refuse many keys whose hashes a file can choose: a dict of ones that are all alike takes quadratic time."""
    if sum(type(key) is dict for key in keys) > _MOST_TAGGED_KEYS:
        raise Refused(f"a dict or set has more than {_MOST_TAGGED_KEYS} keys that are not plain numbers or strings")


def entry(table: list[T], number: Json, missing: str) -> T:
    """The entry of that number; ``missing`` says what is wrong if there is none, with the number in its place."""
    if type(number) is not int or not 0 <= number < len(table):
        raise Refused(missing.format(shown(number)))
    return table[number]


def stored_object(stored: Json, required: set[str], optional: set[str], what: str) -> dict[str, Json]:
    """``stored`` as an object that has the keys ``required``, and besides them only ``optional`` ones."""
    if type(stored) is not dict or not required <= stored.keys() <= required | optional:
        raise Refused(f"{what} is not an object with {', '.join(sorted(required))}")
    return stored


def stored_strings(stored: Json) -> tuple[str, ...]:
    """``stored`` as strings."""
    if type(stored) is not list or not all(type(text) is str for text in stored):
        raise Refused("a list of strings is something else")
    return tuple(stored)


def pair(stored: Json) -> list[Json]:
    """``stored`` as a list of two."""
    if type(stored) is not list or len(stored) != 2:
        raise Refused(f"a pair is expected, not {shown(stored)}")
    return stored


def _text(stored: Json) -> str:
    if type(stored) is not str:
        raise Refused(f"a string is expected, not {shown(stored)}")
    return stored


def shown(stored: Json) -> str:
    """A part of a file for a message: short, and with nothing unprintable."""
    text = ascii(stored) if isinstance(stored, (str, int, float, bool, type(None))) else type_in_words(stored)
    return text if len(text) <= 80 else f"{text[:80]}…"


def printable(text: str) -> str:
    """``text`` for messages and listings: what moves a terminal's cursor or ends a line is a blank."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
