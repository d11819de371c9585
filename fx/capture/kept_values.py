"""What holds numbers and objects from one call to the next, as it was before a trace: to compare, and to put back."""

from __future__ import annotations

import operator
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Protocol

import torch

from fx.frames import is_pythons_file

CONTAINERS = frozenset({list, dict, set, OrderedDict, defaultdict, deque, Counter})
_OTHERS = (torch.Tensor, torch.nn.Module, ModuleType, FunctionType, MethodType, partial, type)
_ABSENT = object()


class Kept(Protocol):
    """What one value was."""

    def is_changed(self) -> bool:
        """Return whether it is something else now."""
        ...

    def restore(self) -> None:
        """Make it again what it was."""
        ...


class KeptContainer:
    """The elements of a list, dict or set, or the attributes of an object."""

    __slots__ = ("_container", "_saved")

    def __init__(self, container: Any) -> None:
        self._container = container
        self._saved = container.copy()

    def is_changed(self) -> bool:
        """Return whether it has other elements."""
        container, saved = self._container, self._saved
        if len(container) != len(saved):
            return True
        if isinstance(container, set):
            return container != saved
        if isinstance(container, dict):
            return any(key not in saved or saved[key] is not value for key, value in container.items())
        return any(one is not other for one, other in zip(container, saved, strict=True))

    def restore(self) -> None:
        """Put the elements back."""
        container, saved = self._container, self._saved
        if not isinstance(container, dict) or list(container) != list(saved):
            container.clear()  # attributes of an object may be in use in other threads
        if isinstance(container, (list, deque)):
            container.extend(saved)
        elif isinstance(container, Counter):
            dict.update(container, saved)  # whose own method adds
        else:
            container.update(saved)


class KeptNames:
    """What names stand for in globals or in a class."""

    __slots__ = ("_owner", "_saved")

    def __init__(self, owner: dict[str, Any] | type, names: Any) -> None:
        self._owner = owner
        held = vars(owner) if isinstance(owner, type) else owner
        self._saved = {name: held.get(name, _ABSENT) for name in names}

    def is_changed(self) -> bool:
        """Return whether they stand for something else."""
        held = vars(self._owner) if isinstance(self._owner, type) else self._owner
        return any(held.get(name, _ABSENT) is not value for name, value in self._saved.items())

    def restore(self) -> None:
        """Let them stand for what they did."""
        for name, value in self._saved.items():
            owner = self._owner
            if isinstance(owner, type):
                if value is not _ABSENT and vars(owner).get(name) is not value:
                    setattr(owner, name, value)
                elif value is _ABSENT and name in vars(owner):
                    delattr(owner, name)
            elif value is not _ABSENT:
                owner[name] = value
            else:
                owner.pop(name, None)


class KeptCell:
    """What a variable of an outer function holds."""

    __slots__ = ("_cell", "_saved")

    def __init__(self, cell: Any) -> None:
        self._cell = cell
        self._saved = cell.cell_contents

    def is_changed(self) -> bool:
        """Return whether it holds something else."""
        try:
            return self._cell.cell_contents is not self._saved
        except ValueError:  # it was deleted
            return True

    def restore(self) -> None:
        """Let it hold what it did."""
        self._cell.cell_contents = self._saved


class KeptArray:
    """The numbers of an array of numpy's."""

    __slots__ = ("_array", "_saved")

    def __init__(self, array: Any) -> None:
        self._array = array
        self._saved = array.copy()

    def is_changed(self) -> bool:
        """Return whether there are others in it."""
        if self._array.shape != self._saved.shape:
            return True
        if self._array.dtype.hasobject:
            return any(one is not other for one, other in zip(self._array.flat, self._saved.flat, strict=True))
        return self._array.tobytes() != self._saved.tobytes()

    def restore(self) -> None:
        """Write the numbers back."""
        self._array[...] = self._saved


class KeptGenerator:
    """The state of a generator of random numbers, of Python's or numpy's."""

    __slots__ = ("_generator", "_saved")

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._saved = self._state()

    def _state(self) -> Any:
        generator = self._generator
        if isinstance(generator, random.Random):
            return generator.getstate()
        return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()

    def is_changed(self) -> bool:
        """Return whether numbers were drawn."""
        return repr(self._state()) != repr(self._saved)

    def restore(self) -> None:
        """Set the state back."""
        generator = self._generator
        if isinstance(generator, random.Random):
            generator.setstate(self._saved)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = self._saved
        else:
            generator.set_state(self._saved)


class KeptIterator:
    """How far an iterator has come. It cannot be put back."""

    __slots__ = ("_saved", "iterator")

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._saved = self._place()

    def _place(self) -> Any:
        iterator = self.iterator
        if isinstance(iterator, GeneratorType):
            frame = iterator.gi_frame
            return frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()})
        text = repr(iterator) if type(iterator).__module__ == "itertools" else ""
        return operator.length_hint(iterator, -1), text

    def is_changed(self) -> bool:
        """Return whether it has gone on, as far as it shows."""
        return self._place() != self._saved

    def restore(self) -> None:
        """Leave it."""


def keep(value: Any) -> Kept | None:
    """Return what a value was, to compare and to put back; ``None`` for what holds nothing that can change."""
    kind = type(value)
    if kind in CONTAINERS:
        return KeptContainer(value)
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else KeptGenerator(value)
    if kind.__module__.startswith("numpy"):
        return _keep_of_numpy(value)
    if isinstance(value, _OTHERS):
        return None
    if hasattr(kind, "__next__"):
        return KeptIterator(value)
    return KeptContainer(value.__dict__) if is_plain_object(value) else None


def _keep_of_numpy(value: Any) -> Kept | None:
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        return KeptArray(value)
    return KeptGenerator(value) if type(value).__name__ in ("Generator", "RandomState") else None


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
