"""What holds numbers and objects from one call to the next, as it was before a trace: to compare, and to put back."""

from __future__ import annotations

import operator
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch

from fx.frames import is_pythons_file

CONTAINERS = frozenset({list, dict, set, OrderedDict, defaultdict, deque, Counter})
_OTHERS = (torch.Tensor, torch.nn.Module, ModuleType, FunctionType, MethodType, partial, type)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class KeptValue:
    """What one value was."""

    is_changed: Callable[[], bool]
    """Returns whether it is something else now."""
    restore: Callable[[], None]
    """Makes it again what it was."""
    iterator: Any = None
    """The value, where it is an iterator, which cannot be put back."""
    is_generator: bool = False
    """Whether it is a generator of random numbers."""


def kept_container(container: Any) -> KeptValue:
    """Keep the elements of a list, dict or set, or the attributes of an object."""
    saved = container.copy()

    def is_changed() -> bool:
        if len(container) != len(saved):
            return True
        if isinstance(container, set):
            return container != saved
        if isinstance(container, dict):
            return any(key not in saved or saved[key] is not value for key, value in container.items())
        return any(one is not other for one, other in zip(container, saved, strict=True))

    def restore() -> None:
        if not isinstance(container, dict) or list(container) != list(saved):
            container.clear()  # attributes of an object may be in use in other threads
        if isinstance(container, (list, deque)):
            container.extend(saved)
        elif isinstance(container, Counter):
            dict.update(container, saved)  # whose own method adds
        else:
            container.update(saved)

    return KeptValue(is_changed, restore)


def kept_names(owner: dict[str, Any] | type, names: Iterable[str]) -> KeptValue:
    """Keep what names stand for in globals or in a class."""
    held: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
    saved = {name: held.get(name, _ABSENT) for name in names}

    def restore() -> None:
        for name, value in saved.items():
            if isinstance(owner, dict):
                if value is not _ABSENT:
                    owner[name] = value
                else:
                    owner.pop(name, None)
            elif value is not _ABSENT and held.get(name) is not value:
                setattr(owner, name, value)
            elif value is _ABSENT and name in held:
                delattr(owner, name)

    return KeptValue(lambda: any(held.get(name, _ABSENT) is not value for name, value in saved.items()), restore)


def kept_cell(cell: CellType) -> KeptValue:
    """Keep what a variable of an outer function holds."""
    saved = cell.cell_contents

    def is_changed() -> bool:
        try:
            return cell.cell_contents is not saved
        except ValueError:  # it was deleted
            return True

    def restore() -> None:
        cell.cell_contents = saved

    return KeptValue(is_changed, restore)


def _kept_array(array: Any) -> KeptValue:
    """Keep the numbers of an array of numpy's."""
    saved = array.copy()

    def is_changed() -> bool:
        if array.shape != saved.shape:
            return True
        if array.dtype.hasobject:
            return any(one is not other for one, other in zip(array.flat, saved.flat, strict=True))
        return array.tobytes() != saved.tobytes()

    def restore() -> None:
        array[...] = saved

    return KeptValue(is_changed, restore)


def _kept_generator(generator: Any) -> KeptValue:
    """Keep the state of a generator of random numbers, of Python's or numpy's."""

    def state() -> Any:
        if isinstance(generator, random.Random):
            return generator.getstate()
        return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()

    def restore() -> None:
        if isinstance(generator, random.Random):
            generator.setstate(saved)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = saved
        else:
            generator.set_state(saved)

    saved = state()
    return KeptValue(lambda: repr(state()) != repr(saved), restore, is_generator=True)


def generator_of(value: Any) -> Any:
    """Return the generator of random numbers, of Python's or numpy's, that a value is, or draws from when it is called.

    >>> import random
    >>> generator_of(partial(random.random)) is random.seed.__self__, generator_of(len)
    (True, None)
    """
    while type(value) is partial:
        value = value.func
    if type(value) in (MethodType, BuiltinMethodType):
        value = value.__self__
    numpy_random: Any = sys.modules.get("numpy.random")
    kinds = () if numpy_random is None else (numpy_random.Generator, numpy_random.RandomState)
    return value if isinstance(value, (random.Random, *kinds)) else None


DRAWING = "cannot draw random numbers in Python, or seed a generator, while a program is captured"
WHY_NO_DRAWING: dict[str, Any] = {
    "why": "what is drawn now would be a constant of the program, and the state of the generator is everybody's",
    "remedy": "draw with torch.rand and the like, which are recorded, or mark the function with fx.wrap",
}


def _kept_iterator(iterator: Any) -> KeptValue:
    """Keep how far an iterator has come, as far as it shows."""

    def place() -> Any:
        if isinstance(iterator, GeneratorType):
            frame = iterator.gi_frame
            return frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()})
        text = repr(iterator) if type(iterator).__module__ == "itertools" else ""
        return operator.length_hint(iterator, -1), text

    saved = place()
    return KeptValue(lambda: place() != saved, lambda: None, iterator)


def keep(value: Any) -> KeptValue | None:
    """Return what a value was, to compare and to put back; ``None`` for what holds nothing that can change."""
    kind = type(value)
    if kind in CONTAINERS:
        return kept_container(value)
    if (generator := generator_of(value)) is not None:
        return None if isinstance(generator, random.SystemRandom) else _kept_generator(generator)
    if kind.__module__.startswith("numpy"):
        return _keep_of_numpy(value)
    if isinstance(value, _OTHERS):
        return None
    if hasattr(kind, "__next__"):
        return _kept_iterator(value)
    return kept_container(value.__dict__) if is_plain_object(value) else None


def _keep_of_numpy(value: Any) -> KeptValue | None:
    numpy: Any = sys.modules["numpy"]
    return _kept_array(value) if isinstance(value, numpy.ndarray) else None


def is_plain_object(value: Any) -> bool:
    """Return whether a value keeps attributes of its own, and is not a tensor, module, class or function."""
    if isinstance(value, _OTHERS) or type(value).__module__.startswith(("torch", "fx.")):
        return False
    return isinstance(getattr(value, "__dict__", None), dict) and not _is_of_python(type(value))


def _is_of_python(kind: type) -> bool:
    """Return whether a class of the standard library's is more than its attributes: locks, loggers, threads."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and is_pythons_file(file) and kind.__name__ not in ("SimpleNamespace", "Namespace")


def elements(value: Any) -> Any:
    """Return what is in a container, or held by an object."""
    if type(value) not in CONTAINERS:
        value = getattr(value, "__dict__", ())
    return list(value.values()) if isinstance(value, dict) else list(value)
