"""Module hierarchies as a list of modules, in which each refers to earlier ones only, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fx.errors import FxError, LoadError, SaveError, with_article
from fx.graph_module import GraphModule, _plain_class
from fx.modules.attributes import LEFT_BY_SCRIPTING
from fx.modules.containers import Container
from fx.serialization.allow_list import HOLDERS, Refused, find_class, name_of
from fx.serialization.graphs import decode_graph, decode_notes, encode_graph, encode_notes
from fx.serialization.module_state import (
    FRESH,
    PROGRAM_STATE,
    Budget,
    check_attribute,
    constructor_arguments,
    fill_module,
    make_module,
    tensor_slots,
)
from fx.serialization.saved_tensors import TensorWriter
from fx.serialization.trusted_arguments import check_trusted_arguments
from fx.serialization.values import Json, ValueReader, ValueWriter, entry, is_name, printable, stored_object

_MOST_LEVELS = 100
"""The largest depth of nested modules."""
_MOST_PATHS = 1_000_000
"""The largest number of paths to modules: shared modules can be reached by exponentially many."""

_PROGRAM, _CONTAINER = "fx.GraphModule", "fx.Container"
_HOLDERS: dict[str, Callable[[], torch.nn.Module]] = {
    _CONTAINER: Container,
    **{f"torch.nn.{name}": getattr(torch.nn, name) for name in HOLDERS},
}
"""Modules that are created empty."""
_HOLDER_NAMES = {make: name for name, make in _HOLDERS.items()}

_STATE = frozenset({"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
_CLASS = {"class": str, "training": bool}
_HELD: dict[str, Json] = {"parameters": {}, "buffers": {}, "transient": [], "modules": {}, "attributes": {}}
"""The parts of a module that a file may lack, if they are empty."""


class _Extent:
    """The depth of nested modules and the number of paths, computed from the modules that each holds."""

    def __init__(self) -> None:
        self._levels: list[int] = []
        self._paths: list[int] = []

    def add(self, children: list[int], tensors: int) -> None:
        """Add the next module, which holds the modules with these numbers."""
        self._levels.append(1 + max((self._levels[child] for child in children), default=0))
        self._paths.append(1 + tensors + sum(self._paths[child] for child in children))
        if self._levels[-1] > _MOST_LEVELS:
            raise Refused(f"modules nest more than {_MOST_LEVELS} levels deep")
        if self._paths[-1] > _MOST_PATHS:
            raise Refused(f"more than {_MOST_PATHS:,} paths lead to modules")


class ModuleWriter:
    """The writer of a program with its modules."""

    def __init__(self, tensors: TensorWriter) -> None:
        self._tensors = tensors
        self._values = ValueWriter(tensors.index)
        self._stored: list[Json] = []
        self._numbers: dict[int, tuple[int, torch.nn.Module]] = {}
        self._parts: dict[int, str] = {}
        self._open: set[int] = set()
        self._extent = _Extent()
        self._budget = Budget()

    def write(self, program: GraphModule) -> list[Json]:
        """Return all modules, the program last.

        Raises:
            SaveError: a module is more than data; the message names its path.
        """
        self._module(program, "")
        return self._stored

    def _module(self, module: torch.nn.Module, path: str) -> int:
        numbered = self._numbers.get(id(module))
        if numbered is not None:
            return numbered[0]
        try:
            if id(module) in self._open:
                raise Refused("it holds itself")
            if id(module) in self._parts:
                raise Refused(f"it is also a part of {self._parts[id(module)]}", why="which is made as a whole")
            if len(self._open) > _MOST_LEVELS:
                raise Refused(f"modules nest more than {_MOST_LEVELS} levels deep")
            self._open.add(id(module))
            stored, children = self._describe(module, path)
            self._open.remove(id(module))
            self._extent.add(children, len(module._parameters) + len(module._buffers))
        except Refused as refused:
            kind = with_article(f"{type(module).__module__}.{type(module).__qualname__}")
            raise refused.as_error(SaveError, "cannot save the program", where=_place(path), value=kind) from refused
        self._stored.append(stored)
        self._numbers[id(module)] = (len(self._stored) - 1, module)
        return len(self._stored) - 1

    def _describe(self, module: torch.nn.Module, path: str) -> tuple[Json, list[int]]:
        """Return the module as JSON, and the numbers of the modules that it holds."""
        if isinstance(module, GraphModule):
            if _plain_class(type(module)) is not GraphModule:
                raise Refused("it is of a subclass of GraphModule", why="which a file cannot make again")
            return self._program(module, path)
        if (name := _HOLDER_NAMES.get(type(module))) is not None:
            return self._holder(module, path, {"class": name}, frozenset())
        return self._constructed(module, path), []

    def _program(self, module: GraphModule, path: str) -> tuple[Json, list[int]]:
        name = type(module).__name__
        if not is_name(name):
            raise Refused(f"{name!r} is not a name of a class")
        stored, children = self._holder(module, path, {"class": _PROGRAM, "name": name}, PROGRAM_STATE)
        if meta := encode_notes(module.meta):
            stored["meta"] = meta
        check_trusted_arguments(module, is_outermost=not path)
        stored["graph"] = encode_graph(module, module.graph, _place(path), self._values)
        return stored, children

    def _holder(
        self, module: torch.nn.Module, path: str, stored: dict[str, Json], own: frozenset[str]
    ) -> tuple[dict[str, Json], list[int]]:
        for name in (*module._parameters, *module._buffers, *module._modules):
            check_attribute(module, name)
        stored["training"] = bool(module.training)
        entries: dict[str, Json] = {
            "parameters": self._tensor_numbers(module._parameters, path),
            "buffers": self._tensor_numbers(module._buffers, path),
            "transient": sorted(module._non_persistent_buffers_set),
            "modules": {
                name: None if child is None else self._module(child, _join(path, name))
                for name, child in module._modules.items()
            },
            "attributes": self._attributes(module, own),
        }
        stored.update((key, value) for key, value in entries.items() if value)
        return stored, [number for number in entries["modules"].values() if number is not None]

    def _tensor_numbers(self, tensors: dict[str, Any], path: str) -> dict[str, Json]:
        return {
            name: None if tensor is None else self._tensors.index(tensor, _join(path, name))
            for name, tensor in tensors.items()
        }

    def _attributes(self, module: torch.nn.Module, own: frozenset[str]) -> dict[str, Json]:
        state: dict[str, Any] = getattr(module, "plain_state", lambda: module.__dict__)()
        attributes: dict[str, Json] = {}
        for name, value in state.items():
            if name in _STATE or name in own or name in LEFT_BY_SCRIPTING:
                continue
            if name in FRESH.__dict__:
                if value != FRESH.__dict__[name]:
                    raise Refused(
                        f"it has hooks ({name})", why="a file holds no code", remedy="remove them, or use pickle"
                    )
                continue
            check_attribute(module, name)
            try:
                attributes[name] = self._values.value(value)
            except Refused as refused:
                raise Refused(
                    f"its attribute {name!r}: {refused.what}",
                    refused.why,
                    "delete the attribute, or make it plain data",
                ) from refused
        return attributes

    def _constructed(self, module: torch.nn.Module, path: str) -> Json:
        kind = type(module)
        try:
            name = name_of(kind)
        except Refused as refused:
            raise _not_describable(module, refused) from refused
        arguments = constructor_arguments(module, self._budget)
        tensors: dict[str, Json] = {}
        for slot, _, _, tensor in tensor_slots(module):
            if tensor is not None:
                tensors[slot] = self._tensors.index(tensor, _join(path, slot))
        modes = {part: inner.training for part, inner in module.named_modules() if inner.training != module.training}
        for part, inner in module.named_modules():
            if id(inner) in self._numbers or id(inner) in self._parts:
                raise Refused(f"its submodule {part!r} is also used on its own", why="it is made as a whole")
            if part:
                self._parts[id(inner)] = path
        stored = {
            "class": name,
            "training": bool(module.training),
            "arguments": {key: self._values.value(value) for key, value in arguments.items()},
            "tensors": tensors,
            "modes": modes,
        }
        return {key: value for key, value in stored.items() if value not in ({}, [])}


def _not_describable(module: torch.nn.Module, refused: Refused) -> Refused:
    kind = type(module)
    if hasattr(module, "parametrizations"):
        remedy = "torch.nn.utils.parametrize.remove_parametrizations(module, name), or use pickle"
    elif kind.__module__.partition(".")[0] == "torch":
        remedy = "trace into it with a Tracer whose is_leaf says so, or use to_folder or pickle"
    else:
        remedy = f"@fx.serialization.allow above class {kind.__qualname__}, trace into it, or use to_folder or pickle"
    return Refused(
        f"the module's class {kind.__qualname__} is none that a file may name",
        why="a file names classes of torch.nn and those that you allow",
        remedy=remedy,
    )


def _place(path: str) -> str:
    return f"module {path}" if path else "the program itself"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


class ModuleReader:
    """The reader of modules that ``ModuleWriter`` wrote."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._values = ValueReader(tensors)
        self._modules_read: list[torch.nn.Module] = []
        self._extent = _Extent()
        self._budget = Budget()

    def read(self, stored: list[Json]) -> GraphModule:
        """Return the program, which is the last module.

        Raises:
            LoadError: a module is damaged or not allowed; the message names it.
        """
        if not stored:
            raise Refused("there are no modules")
        for number, described in enumerate(stored):
            place = f"module {number} of {len(stored)}"
            try:
                self._modules_read.append(self._module(described, place))
            except Refused as refused:
                raise refused.as_error(LoadError, "cannot load the program", where=place) from refused
        program = self._modules_read[-1]
        if not isinstance(program, GraphModule):
            raise Refused("the last module is not a program")
        for module in self._modules_read:
            if isinstance(module, GraphModule):
                check_trusted_arguments(module, is_outermost=module is program)
        return program

    def _module(self, stored: Json, place: str) -> torch.nn.Module:
        name = stored.get("class") if type(stored) is dict else None
        if name == _PROGRAM:
            return self._program(stored, place)
        if type(name) is str and (make := _HOLDERS.get(name)) is not None:
            return self._filled(make(), stored_object(stored, "a module", _CLASS, _HELD))
        return self._constructed(stored)

    def _program(self, stored: Json, place: str) -> GraphModule:
        required = {**_CLASS, "name": str, "graph": object}
        parts = stored_object(stored, "a program", required, {**_HELD, "meta": {}})
        if not is_name(parts["name"]):
            raise Refused("the name of a program's class is none")
        module = GraphModule.__new__(GraphModule)
        torch.nn.Module.__init__(module)
        type(module).__name__ = parts["name"]
        module.__dict__.update(_tracer_cls=None, _tracer_extras=None, meta=decode_notes(parts["meta"]))
        self._filled(module, parts)
        graph = decode_graph(module, parts["graph"], place, self._tensors)
        try:
            module.__dict__["_graph"] = graph  # the setter would write the code of nested programs again
            graph.owning_module = module
            module._write()
            module._install()
        except FxError as error:
            raise Refused("its graph cannot be written as Python", why=printable(str(error))) from error
        return module

    def _filled(self, module: torch.nn.Module, parts: dict[str, Json]) -> torch.nn.Module:
        """Return an empty module with these parts."""
        transient = parts["transient"]
        names = [name for key in ("parameters", "buffers", "modules", "attributes") for name in parts[key]]
        if len(set(names)) != len(names):
            raise Refused("two parts of a module have one name")
        for name in names:
            check_attribute(module, name)
        module.training = parts["training"]
        for name, number in parts["parameters"].items():
            module._parameters[name] = self._tensor(number, torch.nn.Parameter)
        for name, number in parts["buffers"].items():
            module._buffers[name] = self._tensor(number, torch.Tensor)
        if not all(type(name) is str and name in parts["buffers"] for name in transient):
            raise Refused("a buffer that is not in the state dict is none")
        module._non_persistent_buffers_set.update(transient)
        missing = "a module holds number {}, which is none before it"
        for name, number in parts["modules"].items():
            module._modules[name] = None if number is None else entry(self._modules_read, number, missing)
        children = [number for number in parts["modules"].values() if number is not None]
        self._extent.add(children, len(parts["parameters"]) + len(parts["buffers"]))
        for name, value in parts["attributes"].items():
            module.__dict__[name] = self._values.value(value)
        return module

    def _tensor(self, stored: Json, kind: type) -> Any:
        if stored is None:
            return None
        tensor = entry(self._tensors, stored, "there is no tensor number {}")
        if type(tensor) is not kind:
            raise Refused(f"tensor number {stored} is not a {'buffer' if kind is torch.Tensor else 'parameter'}")
        return tensor

    def _constructed(self, stored: Json) -> torch.nn.Module:
        parts = stored_object(stored, "a module", _CLASS, {"arguments": {}, "tensors": {}, "modes": {}})
        kind = find_class(parts["class"])
        if not issubclass(kind, torch.nn.Module) or issubclass(kind, GraphModule):
            raise Refused(f"{parts['class']} is not a class of modules")
        arguments = {name: self._values.value(value) for name, value in parts["arguments"].items()}
        missing = "there is no tensor number {}"
        values = {path: entry(self._tensors, number, missing) for path, number in parts["tensors"].items()}
        module = make_module(kind, arguments, list(values.values()), self._budget)
        fill_module(module, values)
        module.train(parts["training"])
        inner = dict(module.named_modules())
        for path, training in parts["modes"].items():
            if path not in inner or type(training) is not bool:
                raise Refused(f"{ascii(path)[:80]} is not a submodule of it")
            inner[path].training = training
        self._extent.add([], len(values))
        return module
