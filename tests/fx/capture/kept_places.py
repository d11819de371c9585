"""Places where a program can keep a value of a call, each with functions that write and read it."""

from __future__ import annotations

import collections
import contextvars
import copyreg
import dataclasses
import enum
import functools
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Place:
    """A place that is empty."""

    put: Callable[[Any], None]
    """Keeps a value there."""
    get: Callable[[], Any]
    """Returns the value that is kept there, or ``None``."""
    owner: nn.Module | None = None
    """The module that owns the place, if the model has to contain it."""
    line: int = 0
    """The line that keeps the value, if a message names it."""
    is_cache: bool = False
    """Whether a capture may drop the old value or leave a new one."""


PLACES: dict[str, Callable[[], Place]] = {}


def place(make: Callable[[], Place]) -> Callable[[], Place]:
    PLACES[make.__name__] = make
    return make


def _of_attribute(owner: Any, name: str = "content") -> Place:
    return Place(lambda value: setattr(owner, name, value), lambda: getattr(owner, name, None))


def _of_entry(entries: Any) -> Place:
    def put(value: Any) -> None:
        entries["content"] = value

    return Place(put, lambda: entries.get("content"))


class Plain:
    """An object with attributes."""

    content: Any = None

    def keep(self, value: Any) -> None:
        self.content = value

    def read(self) -> Any:
        return self.content


@place
def attribute_of_an_object() -> Place:
    return _of_attribute(Plain())


@place
def attribute_of_a_module_below() -> Place:
    owner = nn.Identity()
    return dataclasses.replace(_of_attribute(owner), owner=owner)


@place
def attribute_of_a_module_elsewhere() -> Place:
    return _of_attribute(nn.Linear(2, 2))


@place
def attribute_of_a_parameter() -> Place:
    return _of_attribute(nn.Parameter(torch.ones(1)))


@place
def attribute_of_a_namespace() -> Place:
    return _of_attribute(types.SimpleNamespace())


@place
def attribute_of_a_python_module() -> Place:
    module = sys.modules["kept_places_of_a_module"] = types.ModuleType("kept_places_of_a_module")

    def put(value: Any) -> None:
        module.content = value  # type: ignore[attr-defined]

    return Place(put, lambda: getattr(module, "content", None))


@place
def attribute_of_a_function() -> Place:
    def put(value: Any) -> None:
        put.content = value  # type: ignore[attr-defined]

    return Place(put, lambda: getattr(put, "content", None))


@place
def attribute_of_a_class() -> Place:
    class Own:
        @classmethod
        def keep(cls, value: Any) -> None:
            cls.content = value

    return Place(Own.keep, lambda: getattr(Own, "content", None))


@place
def attribute_of_a_metaclass() -> Place:
    class Meta(type):
        pass

    class Own(metaclass=Meta):
        pass

    def put(value: Any) -> None:
        type(Own).content = value  # type: ignore[attr-defined]

    return Place(put, lambda: getattr(Own, "content", None))


@place
def attribute_of_an_enum_member() -> Place:
    class Mode(enum.Enum):
        FIRST = 1

    return _of_attribute(Mode.FIRST)


@place
def attribute_of_an_exception() -> Place:
    return _of_attribute(ValueError("content"))


@place
def slot() -> Place:
    class Slotted:
        __slots__ = ("content",)

    return _of_attribute(Slotted())


@place
def field_of_a_dataclass() -> Place:
    @dataclass
    class Record:
        content: Any = None

    return _of_attribute(Record())


@place
def field_of_a_frozen_dataclass() -> Place:
    @dataclass(frozen=True, slots=True)
    class Record:
        content: Any = None

    record = Record()
    return Place(lambda value: object.__setattr__(record, "content", value), lambda: record.content)


@place
def object_of_a_bound_method() -> Place:
    owner = Plain()
    return Place(owner.keep, owner.read)


@place
def cached_property() -> Place:
    class Holder:
        value: Any = None

        @functools.cached_property
        def doubled(self) -> Any:
            return self.value

    holder = Holder()

    def put(value: Any) -> None:
        holder.__dict__.pop("doubled", None)
        holder.value = value
        holder.doubled

    return Place(put, lambda: vars(holder).get("doubled"))


@place
def dictionary() -> Place:
    return _of_entry({})


@place
def nested_dictionary() -> Place:
    entries: dict[str, Any] = {"a": {"b": [{}]}}

    def put(value: Any) -> None:
        entries["a"]["b"][0]["content"] = value

    return Place(put, lambda: entries["a"]["b"][0].get("content"))


@place
def dictionary_in_a_tuple() -> Place:
    return _of_entry((1, ({},))[1][0])


@place
def dictionary_by_a_mapping_proxy() -> Place:
    entries: dict[str, Any] = {}
    view = types.MappingProxyType(entries)

    def put(value: Any) -> None:
        entries["content"] = value

    return Place(put, lambda: view.get("content"))


@place
def dictionary_of_a_class_of_its_own() -> Place:
    class Registry(dict[str, Any]):
        pass

    return _of_entry(Registry())


@place
def ordered_dictionary() -> Place:
    return _of_entry(collections.OrderedDict())


@place
def user_dictionary() -> Place:
    return _of_entry(collections.UserDict())


@place
def chain_map() -> Place:
    return _of_entry(collections.ChainMap({}, {}))


@place
def default_dictionary() -> Place:
    entries: Any = collections.defaultdict(list)

    def put(value: Any) -> None:
        entries["content"].append(value)

    return Place(put, lambda: entries["content"][-1] if "content" in entries else None)


def _of_sequence(elements: Any) -> Place:
    def put(value: Any) -> None:
        elements.clear()
        elements.append(value)

    return Place(put, lambda: elements[-1] if elements else None)


@place
def list_() -> Place:
    return _of_sequence([])


@place
def list_of_a_class_of_its_own() -> Place:
    class Values(list[Any]):
        pass

    return _of_sequence(Values())


@place
def deque() -> Place:
    return _of_sequence(collections.deque(maxlen=3))


@place
def queue_() -> Place:
    waiting: queue.Queue[Any] = queue.Queue()

    def put(value: Any) -> None:
        waiting.queue.clear()
        waiting.put(value)

    return Place(put, lambda: waiting.queue[0] if waiting.queue else None, is_cache=True)


class Named(NamedTuple):
    """A tuple with a name for its element."""

    content: Any


@place
def named_tuple_in_a_list() -> Place:
    elements: list[Named] = []

    def put(value: Any) -> None:
        elements[:] = [Named(value)]

    return Place(put, lambda: elements[0].content if elements else None)


@place
def set_() -> Place:
    class Kept:
        def __init__(self, value: Any) -> None:
            self.value = value

    elements: set[Kept] = set()

    def put(value: Any) -> None:
        elements.clear()
        elements.add(Kept(value))

    return Place(put, lambda: next(iter(elements)).value if elements else None)


@place
def array_of_objects() -> Place:
    array = np.array([None, None], dtype=object)

    def put(value: Any) -> None:
        array[0] = [value]

    return Place(put, lambda: array[0][0] if array[0] else None)


@place
def weak_key_dictionary() -> Place:
    key, entries = Plain(), weakref.WeakKeyDictionary[Any, Any]()

    def put(value: Any) -> None:
        entries[key] = value

    return Place(put, lambda: entries.get(key))


@place
def weak_value_dictionary() -> Place:
    entries = weakref.WeakValueDictionary[str, Any]()
    alive: list[Any] = []

    def put(value: Any) -> None:
        keeper = Plain()
        keeper.keep(value)
        entries["content"] = keeper
        alive[:] = [keeper]

    return Place(put, lambda: entries["content"].content if "content" in entries else None)


@place
def weak_set() -> Place:
    elements, alive = weakref.WeakSet[Any](), []

    def put(value: Any) -> None:
        keeper = Plain()
        keeper.keep(value)
        alive[:] = [keeper]
        elements.clear()
        elements.add(keeper)

    return Place(put, lambda: next((element.content for element in elements), None))


@place
def variable_of_an_outer_function() -> Place:
    content: Any = None

    def put(value: Any) -> None:
        nonlocal content
        content = value

    return Place(put, lambda: content)


_content: Any = None


@place
def global_variable() -> Place:
    def put(value: Any) -> None:
        global _content  # noqa: PLW0603 - which is what is tried
        _content = value

    put(None)
    return Place(put, lambda: _content)


@place
def default_of_a_parameter() -> Place:
    def put(value: Any, content: list[Any] = []) -> None:  # noqa: B006 - which is what is tried
        content[:] = [value]

    container: list[Any] = (put.__defaults__ or ([],))[0]
    return Place(put, lambda: container[0] if container else None)


@place
def replaced_defaults() -> Place:
    def scaled(value: Any, by: Any = None) -> Any:
        return by

    def put(value: Any) -> None:
        scaled.__defaults__ = (value,)

    return Place(put, lambda: scaled(1))


@place
def default_of_a_keyword() -> Place:
    def scaled(*, by: Any = None) -> Any:
        return by

    def put(value: Any) -> None:
        scaled.__kwdefaults__["by"] = value  # type: ignore[index]

    return Place(put, scaled)


@place
def keywords_of_a_partial() -> Place:
    call = functools.partial(dict)

    def put(value: Any) -> None:
        call.keywords["content"] = value

    return Place(put, lambda: call().get("content"))


@place
def context_variable() -> Place:
    variable = contextvars.ContextVar[Any]("content", default=None)

    def put(value: Any) -> None:
        variable.set(value)

    return Place(put, variable.get)


@place
def thread_local() -> Place:
    return _of_attribute(threading.local())


@place
def registry_of_a_library() -> Place:
    registry: Any = copyreg.dispatch_table
    registry.pop(Named, None)

    def put(value: Any) -> None:
        copyreg.dispatch_table[Named] = value  # type: ignore[index]

    return Place(put, lambda: registry.get(Named))


@place
def registry_of_torch() -> Place:
    torch.nn.functional.__dict__.pop("kept_by_a_test", None)

    def put(value: Any) -> None:
        torch.nn.functional.kept_by_a_test = value  # type: ignore[attr-defined]

    return Place(put, lambda: getattr(torch.nn.functional, "kept_by_a_test", None))


@place
def cache_of_a_function() -> Place:
    holder: list[Any] = [None]

    @functools.lru_cache(maxsize=4)
    def cached(key: int) -> Any:
        return holder[0]

    def put(value: Any) -> None:
        cached.cache_clear()
        holder[0] = value
        cached(1)
        holder[0] = None

    return Place(put, lambda: cached(1) if cached.cache_info().currsize else None, is_cache=True)


@place
def cache_without_a_bound() -> Place:
    holder: list[Any] = [None]

    @functools.cache
    def cached(key: int) -> Any:
        return holder[0]

    def put(value: Any) -> None:
        cached.cache_clear()
        holder[0] = value
        cached(1)
        holder[0] = None

    return Place(put, lambda: cached(1) if cached.cache_info().currsize else None, is_cache=True)


def frame_of_a_generator() -> Place:
    """The only place that cannot be restored."""

    def keeping() -> Any:
        value: Any = None
        while True:
            sent = yield value
            value = value if sent is None else sent

    keeper = keeping()
    next(keeper)
    line = keeping.__code__.co_firstlineno + 3
    return Place(lambda value: keeper.send(value), lambda: keeper.gi_frame.f_locals.get("value"), line=line)
