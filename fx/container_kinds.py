"""Containers, what programs put their values into: how each kind is taken apart, made again, written and stored.

Arguments of nodes hold tuples, lists, dicts and slices themselves, frozen. Where a program is captured, any other
container becomes a call of its class, which code, pickles, files and the matcher know as they know any call.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.nn import Parameter

from fx.errors import FxError
from fx.immutable_collections import immutable_dict, immutable_list

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@dataclass(frozen=True, slots=True)
class ContainerKind:
    """What there is to know of one kind of container."""

    classes: tuple[type, ...]
    """The classes it is for, without subclasses."""
    parts: Callable[[Any], Sequence[Any]]
    """Returns what a container holds, in order."""
    rebuild: Callable[[Any, list[Any]], Any]
    """Returns a container like the given one that holds other parts, and can be changed where its class can."""
    family: Callable[[type], bool] | None = None
    """Returns whether a class that is in no ``classes`` is of this kind."""
    names: Callable[[Any], Sequence[Any]] | None = None
    """Returns the key or the name of the attribute that each part is reached by. Without it, it is an index."""
    is_keyed: bool = False
    """Whether names are keys, which the program chose as it chose the parts."""
    frozen: type | None = None
    """The class as which arguments of nodes hold it; None if they do not."""
    call: Callable[[Any], Call | None] | None = None
    """Returns the arguments from which its class makes an equal one, which is how a captured program makes it; None
    if its class makes another. Without it, arguments hold the container."""
    spelling: tuple[str, str] | None = ("{name}(", ")")
    """What generated code writes before and behind the parts of one that arguments hold, with the name of its class.
    None if its own object stands there, so that one of other parts is of the class ``frozen``."""
    tag: str | None = None
    """What files call one that arguments hold. That of a family stands beside the name of the class."""
    in_files: bool = False
    """Whether a file may call the class, whatever the arguments, though no user allows it."""

    def labels(self, held: Any) -> Sequence[Any]:
        """Return what each part is reached by: its index, the name of an attribute, or its key."""
        return range(len(self.parts(held))) if self.names is None else self.names(held)

    def freeze(self, held: Any, parts: list[Any]) -> Any:
        """Return what arguments of nodes hold for a container like ``held`` of these parts."""
        made = self.rebuild(held, parts)
        assert self.frozen is not None
        return made if isinstance(made, self.frozen) and self.spelling is not None else self.frozen(made)

    def shape(self, held: Any) -> Hashable:
        """Return what two containers share whose parts can be compared one by one."""
        return self.frozen, tuple(self.labels(held)) if self.is_keyed else len(self.parts(held))

    def written(self, held: Any, texts: list[str], key: Callable[[Any], str], name: Callable[[Any], str]) -> str:
        """Return the code for a container, from that of its parts, and what writes a key and the name of its class."""
        if self.is_keyed and texts:
            texts = [f"{key(label)}: {text}" for label, text in zip(self.labels(held), texts, strict=True)]
        assert self.spelling is not None
        opening, closing = self.spelling
        if opening == "(" and len(texts) == 1:
            closing = ",)"
        elif opening.startswith("{name}"):
            opening = name(type(held)) + opening.removeprefix("{name}")
        return f"{opening}{', '.join(texts)}{closing}"


def _same(held: Any) -> Any:
    return held


def _of_its_class(held: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    try:
        return type(held)(parts)
    except Exception:  # the class is somebody's, or takes numbers only, as that of sizes does
        return tuple(parts)


def _names_of(held: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(held)]


def _fields_of(held: Any) -> list[Any]:
    return [getattr(held, name, None) for name in _names_of(held)]


def _with_fields(held: Any, parts: list[Any]) -> Any:
    given = {field.name: part for field, part in zip(dataclasses.fields(held), parts, strict=True) if field.init}
    try:
        made = dataclasses.replace(held, **given)  # whose class makes what is no field of these
        if all(map(operator.is_, _fields_of(made), parts)):
            return made
    except Exception:  # the constructor is somebody's, which may do anything, and may ask for what is no field
        pass
    made = copy.copy(held)
    for name, part in zip(_names_of(held), parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def _call_of(held: Any, /, *args: Any, **kwargs: Any) -> Call | None:
    """Return these arguments if the class of ``held`` makes of them what holds the same, and nothing else."""
    try:
        made = type(held)(*args, **kwargs)
        kind = container_kind(held)
        assert kind is not None
        parts, labels = ([of(held), of(made)] for of in (kind.parts, kind.labels))
        same = list(labels[0]) == list(labels[1]) and all(map(operator.is_, *parts))
        attributes = [getattr(one, "__dict__", {}).keys() for one in (held, made)]
        return (args, kwargs) if same and attributes[0] == attributes[1] else None
    except Exception:  # the constructor is somebody's, which may do anything
        return None


def _call_with_items(held: Mapping[Any, Any]) -> Call | None:
    items = dict(held)
    return _call_of(held, **items) if dataclasses.is_dataclass(held) else _call_of(held, items)


_LIST = ContainerKind(
    (list, immutable_list),
    parts=_same,
    rebuild=lambda held, parts: parts,
    frozen=immutable_list,
    spelling=("[", "]"),
    tag="list",
)
_TUPLE = ContainerKind(
    (tuple,),
    parts=_same,
    rebuild=lambda held, parts: tuple(parts),
    frozen=tuple,
    spelling=("(", ")"),
    tag="tuple",
)
_DICT = ContainerKind(
    (dict, immutable_dict),
    parts=lambda held: list(held.values()),
    rebuild=lambda held, parts: dict(zip(held, parts, strict=True)),
    names=list,
    is_keyed=True,
    frozen=immutable_dict,
    spelling=("{", "}"),
    tag="dict",
)


def call_of_named_tuple(held: Any) -> Call | None:
    """Return the arguments of a named tuple; one whose class has a constructor of its own is tried, torch's aside."""
    made_by = type(held).__new__
    own = not getattr(made_by, "__globals__", {}).get("__name__", "").startswith(("namedtuple_", "torch."))
    return _call_of(held, *held) if own else (tuple(held), {})


NAMED_TUPLE = ContainerKind(
    (),
    family=lambda kind: issubclass(kind, tuple) and hasattr(kind, "_fields"),
    parts=_same,
    # not by its constructor, which may look at what is in it, as that of packed sequences does
    rebuild=lambda held, parts: type(held)._make(parts),
    names=lambda held: held._fields,
    frozen=tuple,
    tag="namedtuple",
)

_kinds: list[ContainerKind] = [
    _TUPLE,
    _LIST,
    _DICT,
    ContainerKind(
        (slice,),
        parts=lambda held: (held.start, held.stop, held.step),
        rebuild=lambda held, parts: slice(*parts),
        names=lambda held: ("start", "stop", "step"),
        frozen=slice,
        tag="slice",
    ),
    dataclasses.replace(_TUPLE, classes=(torch.Size,), rebuild=_of_its_class, spelling=("{name}([", "])"), tag="size"),
    dataclasses.replace(
        _DICT,
        classes=(OrderedDict,),
        rebuild=lambda held, parts: OrderedDict(zip(held, parts, strict=True)),
        call=lambda held: _call_of(held, [[key, value] for key, value in held.items()]),
        tag="ordered_dict",
        in_files=True,
    ),
    ContainerKind(
        (deque,),
        family=lambda kind: issubclass(kind, deque),
        parts=list,
        rebuild=lambda held, parts: deque(parts, held.maxlen),
        call=lambda held: _call_of(held, list(held), held.maxlen),
        in_files=True,
    ),
    NAMED_TUPLE,
    dataclasses.replace(
        _TUPLE,
        classes=(),
        family=lambda kind: issubclass(kind, tuple),
        rebuild=_of_its_class,
        spelling=None,
        tag=None,
    ),
    dataclasses.replace(
        _LIST,
        classes=(),
        family=lambda kind: issubclass(kind, list),
        call=lambda held: _call_of(held, list(held)),
        tag=None,
    ),
    dataclasses.replace(
        _DICT,
        classes=(defaultdict,),
        family=lambda kind: issubclass(kind, defaultdict),
        rebuild=lambda held, parts: defaultdict(held.default_factory, zip(held, parts, strict=True)),
        call=lambda held: _call_of(held, held.default_factory, dict(held)),
        tag=None,
        in_files=True,
    ),
    dataclasses.replace(_DICT, classes=(), family=lambda kind: issubclass(kind, dict), call=_call_with_items, tag=None),
    dataclasses.replace(
        _DICT,
        classes=(),
        family=lambda kind: issubclass(kind, Mapping),
        frozen=None,
        call=_call_with_items,
        tag=None,
    ),
    ContainerKind(
        (),
        family=dataclasses.is_dataclass,
        parts=_fields_of,
        rebuild=_with_fields,
        names=_names_of,
        call=lambda held: _call_of(held, **dict(zip(_names_of(held), _fields_of(held), strict=True))),
    ),
]
"""The table. A class without a row of its own is of the first family that has it."""
_by_class: dict[type, ContainerKind | None] = {one: kind for kind in _kinds for one in kind.classes}
_of_families: WeakKeyDictionary[type, ContainerKind | None] = WeakKeyDictionary()
"""What was found for other classes."""


def expect_no_container(*classes: type) -> None:
    """Note classes that are no containers, as nearly all that is asked for is of a few classes, and asked often."""
    _by_class.update(dict.fromkeys(classes))


expect_no_container(bool, int, float, str, type(None), type(...), torch.dtype, torch.device, torch.Tensor, Parameter)


def register_container(kind: ContainerKind) -> None:
    """Make a kind of container known wherever values are looked for in containers.

    Args:
        kind: with ``call`` for what captured programs make by its class, with ``frozen`` for what cannot change, which
            arguments of nodes hold.

    Raises:
        FxError: one of its classes, or its tag, is known already; or it is to be ``in_files``.

    >>> class Boxes:
    ...     def __init__(self, corners, size):
    ...         self.corners, self.size = corners, size
    >>> register_container(
    ...     ContainerKind(
    ...         (Boxes,),
    ...         parts=lambda boxes: [boxes.corners],
    ...         rebuild=lambda boxes, parts: Boxes(*parts, boxes.size),
    ...         call=lambda boxes: ((boxes.corners, boxes.size), {}),
    ...     )
    ... )
    >>> import fx
    >>> program = fx.symbolic_trace(lambda x: Boxes(x + 1, (8, 8)))
    >>> program(2).corners, program(2).size
    (3, (8, 8))
    """
    if kind.in_files:
        allowed = ", ".join(f"fx.serialization.allow({one.__name__})" for one in kind.classes)
        raise FxError("whether files may call a class is for its user to say", remedy=allowed)
    for known in _kinds:
        both = {one.__qualname__ for one in {*known.classes} & {*kind.classes}}
        if both or (kind.tag is not None and kind.tag == known.tag):
            raise FxError(
                f"there is a kind of container for {', '.join(sorted(both)) or f'the tag {kind.tag!r}'} already",
                remedy=None if both else "choose another tag",
            )
    _kinds.insert(0, kind)
    _by_class.update(dict.fromkeys(kind.classes, kind))
    _of_families.clear()


def container_kind(value: Any) -> ContainerKind | None:
    """Return the kind of a container, None for what is none."""
    of = type(value)
    if of in _by_class:
        return _by_class[of]
    if of not in _of_families:
        _of_families[of] = next((kind for kind in _kinds if kind.family is not None and kind.family(of)), None)
    return _of_families[of]


def held_kind(value: Any) -> ContainerKind | None:
    """Return the kind of a container that arguments of nodes hold themselves, None for all else."""
    of = type(value)
    kind = _by_class[of] if of in _by_class else container_kind(value)  # the former again, as it is asked most often
    return None if kind is None or kind.frozen is None else kind


def held_classes() -> list[type]:
    """Return the classes of containers that arguments of nodes hold and code can write, families aside."""
    return [one for kind in _kinds if kind.frozen is not None and kind.spelling is not None for one in kind.classes]


def kind_by_tag(tag: str) -> ContainerKind | None:
    """Return the kind that files call ``tag``."""
    return next((kind for kind in _kinds if kind.tag == tag), None)


def classes_in_files() -> list[type]:
    """Return the classes of containers that programs in files may call."""
    return [one for kind in _kinds if kind.in_files for one in kind.classes]


def leaves_of(argument: Any) -> Iterator[Any]:
    """Yield the values in an argument, at any depth, in order.

    >>> list(leaves_of(({"a": 1, "b": [2]}, slice(3, None))))
    [1, 2, 3, None, None]
    """
    kind = held_kind(argument)
    if kind is None:
        yield argument
    else:
        for part in kind.parts(argument):
            yield from leaves_of(part)


def map_parts(function: Callable[[Any], Any], argument: Any) -> Any:
    """Return a container that arguments hold, with ``function`` of each part; anything else as it is.

    Lists and dicts come as plain ones.
    """
    kind = held_kind(argument)
    return argument if kind is None else kind.rebuild(argument, list(map(function, kind.parts(argument))))


def key_of(argument: Any, leaf: Callable[[Any], Hashable]) -> Hashable:
    """Return what is equal for arguments whose containers are of the same classes, and whose leaves have equal keys."""
    kind = held_kind(argument)
    if kind is None:
        return leaf(argument)
    parts = [*kind.labels(argument), *kind.parts(argument)] if kind.is_keyed else kind.parts(argument)
    return type(argument), *[key_of(part, leaf) for part in parts]
