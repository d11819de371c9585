"""Kinds of containers of values: how each is taken apart, rebuilt, written and stored.

Arguments of nodes hold tuples, lists, dicts and slices themselves, frozen. Any other container becomes a call of its
class when a program is captured. Code, pickles, files and the matcher treat it as any call.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
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
    """The facts about one kind of container."""

    classes: tuple[type, ...]
    """The classes of this kind, without subclasses."""
    parts: Callable[[Any], Sequence[Any]]
    """Returns the parts of a container, in order."""
    rebuild: Callable[[Any, list[Any]], Any]
    """Returns a container like the given one with other parts, which can be changed if its class can."""
    family: Callable[[type], bool] | None = None
    """Returns whether a class that is in no ``classes`` is of this kind."""
    names: Callable[[Any], Sequence[Any]] | None = None
    """Returns the key or attribute name of each part. Without it, parts are reached by index."""
    is_keyed: bool = False
    """True if names are keys, which the program chose as it chose the parts."""
    frozen: type | None = None
    """The class of such a container in the arguments of nodes; None if they do not hold it."""
    call: Callable[[Any], Call | None] | None = None
    """Returns the arguments from which its class makes an equal container, as a captured program does; None if its
    class makes a different one. Without it, arguments hold the container.
    """
    spelling: tuple[str, str] | None = ("{name}(", ")")
    """The text that generated code writes before and after the parts of a container in arguments, with the name of its
    class. None if code refers to the object itself, so that a container of other parts is of the class ``frozen``.
    """
    tag: str | None = None
    """The name in files of a container that arguments hold. The tag of a family comes with the name of the class."""
    in_files: bool = False
    """True if a file may call the class with any arguments, even if no user allows it."""

    def labels(self, container: Any) -> Sequence[Any]:
        """Return the label of each part: its index, the name of an attribute, or its key."""
        return range(len(self.parts(container))) if self.names is None else self.names(container)

    def freeze(self, container: Any, parts: list[Any]) -> Any:
        """Return the frozen form, for arguments of nodes, of a container like ``container`` with these parts."""
        rebuilt = self.rebuild(container, parts)
        assert self.frozen is not None
        return rebuilt if isinstance(rebuilt, self.frozen) and self.spelling is not None else self.frozen(rebuilt)

    def shape(self, container: Any) -> Hashable:
        """Return a key that is equal for two containers whose parts can be compared one by one."""
        return self.frozen, tuple(self.labels(container)) if self.is_keyed else len(self.parts(container))

    def written(self, container: Any, texts: list[str], key: Callable[[Any], str], name: Callable[[Any], str]) -> str:
        """Return the code for a container, from that of its parts; ``key`` writes a key, ``name`` a class name."""
        if self.is_keyed and texts:
            texts = [f"{key(label)}: {text}" for label, text in zip(self.labels(container), texts, strict=True)]
        assert self.spelling is not None
        opening, closing = self.spelling
        if opening == "(" and len(texts) == 1:
            closing = ",)"
        elif opening.startswith("{name}"):
            opening = name(type(container)) + opening.removeprefix("{name}")
        return f"{opening}{', '.join(texts)}{closing}"


def _same(container: Any) -> Any:
    return container


def _of_its_class(container: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    try:
        return type(container)(parts)
    except Exception:  # a user's class, or one that takes numbers only, such as that of sizes
        return tuple(parts)


def _names_of(container: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(container)]


def _fields_of(container: Any) -> list[Any]:
    return [getattr(container, name, None) for name in _names_of(container)]


def _with_fields(container: Any, parts: list[Any]) -> Any:
    fields = {field.name: part for field, part in zip(dataclasses.fields(container), parts, strict=True) if field.init}
    try:
        rebuilt = dataclasses.replace(container, **fields)  # the class makes the attributes that are no fields
        if all(map(is_, _fields_of(rebuilt), parts)):
            return rebuilt
    except Exception:  # a user's constructor, which may do anything, and may require arguments that are no fields
        pass
    rebuilt = copy.copy(container)
    for name, part in zip(_names_of(container), parts, strict=True):
        object.__setattr__(rebuilt, name, part)
    return rebuilt


def _call_of(container: Any, /, *args: Any, **kwargs: Any) -> Call | None:
    """Return these arguments if the class of ``container`` makes an equal container of them."""
    try:
        rebuilt = type(container)(*args, **kwargs)
        kind = container_kind(container)
        assert kind is not None
        parts, labels = ([of(container), of(rebuilt)] for of in (kind.parts, kind.labels))
        same = list(labels[0]) == list(labels[1]) and all(map(is_, *parts))
        attributes = [getattr(each, "__dict__", {}).keys() for each in (container, rebuilt)]
        return (args, kwargs) if same and attributes[0] == attributes[1] else None
    except Exception:  # a user's constructor, which may do anything
        return None


def _call_with_items(container: Mapping[Any, Any]) -> Call | None:
    items = dict(container)
    return _call_of(container, **items) if dataclasses.is_dataclass(container) else _call_of(container, items)


_LIST = ContainerKind(
    (list, immutable_list),
    parts=_same,
    rebuild=lambda container, parts: parts,
    frozen=immutable_list,
    spelling=("[", "]"),
    tag="list",
)
_TUPLE = ContainerKind(
    (tuple,),
    parts=_same,
    rebuild=lambda container, parts: tuple(parts),
    frozen=tuple,
    spelling=("(", ")"),
    tag="tuple",
)
_DICT = ContainerKind(
    (dict, immutable_dict),
    parts=lambda container: list(container.values()),
    rebuild=lambda container, parts: dict(zip(container, parts, strict=True)),
    names=list,
    is_keyed=True,
    frozen=immutable_dict,
    spelling=("{", "}"),
    tag="dict",
)


def call_of_named_tuple(container: Any) -> Call | None:
    """Return the arguments of a named tuple; a class with its own constructor is tried, except torch's."""
    made_by = type(container).__new__
    own = not getattr(made_by, "__globals__", {}).get("__name__", "").startswith(("namedtuple_", "torch."))
    return _call_of(container, *container) if own else (tuple(container), {})


NAMED_TUPLE = ContainerKind(
    (),
    family=lambda kind: issubclass(kind, tuple) and hasattr(kind, "_fields"),
    parts=_same,
    # not by its constructor, which may inspect its elements, as that of packed sequences does
    rebuild=lambda container, parts: type(container)._make(parts),
    names=lambda container: container._fields,
    frozen=tuple,
    tag="namedtuple",
)

_kinds: list[ContainerKind] = [
    _TUPLE,
    _LIST,
    _DICT,
    ContainerKind(
        (slice,),
        parts=lambda container: (container.start, container.stop, container.step),
        rebuild=lambda container, parts: slice(*parts),
        names=lambda container: ("start", "stop", "step"),
        frozen=slice,
        tag="slice",
    ),
    dataclasses.replace(_TUPLE, classes=(torch.Size,), rebuild=_of_its_class, spelling=("{name}([", "])"), tag="size"),
    dataclasses.replace(
        _DICT,
        classes=(OrderedDict,),
        rebuild=lambda container, parts: OrderedDict(zip(container, parts, strict=True)),
        call=lambda container: _call_of(container, [[key, value] for key, value in container.items()]),
        tag="ordered_dict",
        in_files=True,
    ),
    ContainerKind(
        (deque,),
        family=lambda kind: issubclass(kind, deque),
        parts=list,
        rebuild=lambda container, parts: deque(parts, container.maxlen),
        call=lambda container: _call_of(container, list(container), container.maxlen),
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
        call=lambda container: _call_of(container, list(container)),
        tag=None,
    ),
    dataclasses.replace(
        _DICT,
        classes=(defaultdict,),
        family=lambda kind: issubclass(kind, defaultdict),
        rebuild=lambda container, parts: defaultdict(container.default_factory, zip(container, parts, strict=True)),
        call=lambda container: _call_of(container, container.default_factory, dict(container)),
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
        call=lambda container: _call_of(
            container, **dict(zip(_names_of(container), _fields_of(container), strict=True))
        ),
    ),
]
"""The table. A class without a row of its own belongs to the first family that contains it."""
_by_class: dict[type, ContainerKind | None] = {class_: kind for kind in _kinds for class_ in kind.classes}
_of_families: WeakKeyDictionary[type, ContainerKind | None] = WeakKeyDictionary()
"""The kinds of other classes, cached."""


def expect_no_container(*classes: type) -> None:
    """Note classes that are no containers: nearly all lookups are for a few classes, and lookups are frequent."""
    _by_class.update(dict.fromkeys(classes))


expect_no_container(bool, int, float, str, type(None), type(...), torch.dtype, torch.device, torch.Tensor, Parameter)


def register_container(kind: ContainerKind) -> None:
    """Register a kind of container wherever values are searched for in containers.

    Args:
        kind: with ``call`` for containers that captured programs make by their class, with ``frozen`` for immutable
            containers, which arguments of nodes hold.

    Raises:
        FxError: one of its classes, or its tag, is registered already; or it has ``in_files`` set.

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
        allowed = ", ".join(f"fx.serialization.allow({class_.__name__})" for class_ in kind.classes)
        raise FxError("only the user of a file may allow it to call a class", remedy=allowed)
    for registered in _kinds:
        both = {class_.__qualname__ for class_ in {*registered.classes} & {*kind.classes}}
        if both or (kind.tag is not None and kind.tag == registered.tag):
            raise FxError(
                f"there is a kind of container for {', '.join(sorted(both)) or f'the tag {kind.tag!r}'} already",
                remedy=None if both else "choose another tag",
            )
    _kinds.insert(0, kind)
    _by_class.update(dict.fromkeys(kind.classes, kind))
    _of_families.clear()


def container_kind(value: Any) -> ContainerKind | None:
    """Return the kind of a container, None for other values."""
    of = type(value)
    if of in _by_class:
        return _by_class[of]
    if of not in _of_families:
        _of_families[of] = next((kind for kind in _kinds if kind.family is not None and kind.family(of)), None)
    return _of_families[of]


def held_kind(value: Any) -> ContainerKind | None:
    """Return the kind of a container that arguments of nodes hold themselves, None for other values."""
    of = type(value)
    # repeats part of container_kind, as it is called most often
    kind = _by_class[of] if of in _by_class else container_kind(value)
    return None if kind is None or kind.frozen is None else kind


def held_classes() -> list[type]:
    """Return the classes of containers that arguments of nodes hold and code can write, without families."""
    return [
        class_ for kind in _kinds if kind.frozen is not None and kind.spelling is not None for class_ in kind.classes
    ]


def kind_by_tag(tag: str) -> ContainerKind | None:
    """Return the kind with the name ``tag`` in files."""
    return next((kind for kind in _kinds if kind.tag == tag), None)


def classes_in_files() -> list[type]:
    """Return the classes of containers that programs in files may call."""
    return [class_ for kind in _kinds if kind.in_files for class_ in kind.classes]


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


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to each leaf, in order; containers of any kind are new ones.

    >>> map_leaves(lambda leaf: leaf + 1, {"a": [1, 2], "b": (3,)})
    {'a': [2, 3], 'b': (4,)}
    """
    kind = container_kind(value)
    if kind is None:
        return function(value)
    return kind.rebuild(value, [map_leaves(function, part) for part in kind.parts(value)])


def map_parts(function: Callable[[Any], Any], argument: Any) -> Any:
    """Return a container that arguments hold, with ``function`` applied to each part; other values unchanged.

    Lists and dicts are plain ones in the result.
    """
    kind = held_kind(argument)
    return argument if kind is None else kind.rebuild(argument, list(map(function, kind.parts(argument))))


def key_of(argument: Any, leaf: Callable[[Any], Hashable]) -> Hashable:
    """Return a key that is equal for arguments with equal classes of containers and equal keys of leaves."""
    kind = held_kind(argument)
    if kind is None:
        return leaf(argument)
    parts = [*kind.labels(argument), *kind.parts(argument)] if kind.is_keyed else kind.parts(argument)
    return type(argument), *[key_of(part, leaf) for part in parts]
