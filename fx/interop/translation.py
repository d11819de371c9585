"""``Translation``: programs of one library rebuilt in the other, node by node and module by module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from types import MethodType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.nn.modules.module import _WrappedHook

from fx.modules.containers import Container, QuickModule
from fx.node import map_aggregate

Source = TypeVar("Source", bound=torch.nn.Module)
Target = TypeVar("Target", bound=torch.nn.Module)

_HELD = frozenset(name for name, value in vars(torch.nn.Module()).items() if isinstance(value, (dict, set))) | {"meta"}
"""Entries of a module that hold what is registered on it: each module has containers of its own for them."""

_MADE = frozenset(
    set(vars(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()))).difference(vars(torch.nn.Module()), {"meta"})
    | {"_graph", "_written", "_code_revision", "_tracer_cls", "_tracer_extras", "_lineno_map", "_prologue_start"}
)
"""Entries of a program, in either library, that are made from its graph or are the library's own."""


class Translation(Generic[Source, Target]):
    """One conversion of programs and what they hold; each module is converted once, however often it is used.

    Tensors, and modules that are neither programs nor mere containers, are shared with the source.

    With ``back_from``, the conversion that made the source, programs, containers and nodes of the source that were
    made by it are written back into those they were made from: these keep their identity and take the changes.
    """

    nodes: dict[Any, Any]
    """The nodes of the source, in order, and what each became."""
    modules: dict[int, tuple[torch.nn.Module, torch.nn.Module]]
    """Programs and containers by the source's identity: the source and what it became."""

    program_type: ClassVar[type[torch.nn.Module]]
    """What a program is in the source's library."""
    node_type: ClassVar[type[Any]]
    """What a node is there."""
    container_type: ClassVar[type[torch.nn.Module]]
    """What holds modules under names in the target's library."""
    functions: ClassVar[dict[Any, Any]]
    """Functions of the source's library that have a counterpart in the target's."""
    records: ClassVar[dict[type[Any], type[Any]]]
    """Named tuples in ``meta``, likewise; the fields are the same."""

    def __init__(self, back_from: Translation[Any, Any] | None = None) -> None:
        self.nodes = {}
        self.modules = {}
        self._arguments: dict[Any, tuple[Any, Any]] = {}  # what the nodes made here were given
        self._known_nodes: dict[Any, Any] = {}
        self._known_modules: dict[int, torch.nn.Module] = {}
        self._given: dict[Any, tuple[Any, Any]] = {}
        if back_from is not None:
            self._known_nodes = {made: node for node, made in back_from.nodes.items()}
            self._known_modules = {id(made): module for module, made in back_from.modules.values()}
            self._given = back_from._arguments

    # What the directions differ in.

    @abstractmethod
    def make_program(self, source: Source) -> Target:
        """A program without nodes or state, named like ``source``."""

    @abstractmethod
    def write_codegen(self, source: Any, target: Any) -> None:
        """Let the graph ``target`` write its code as the graph ``source`` does, if it does not already."""

    @abstractmethod
    def write_notes(self, source: Any, target: Any, meta: dict[str, Any]) -> None:
        """Give ``target`` the notes of the node ``source``, whose ``meta`` speaks of converted nodes already."""

    @abstractmethod
    def is_structured(self, graph: Any) -> bool:
        """Return whether the graph takes structured inputs, so that its module holds their structure."""

    def write_code(self, source: Any, target: Any) -> None:
        """Let ``target`` run the code of its graph; programs inside it are converted already."""
        target.recompile()

    def nodes_of(self, graph: Any) -> Iterable[Any]:
        """The nodes of a graph of the source's library, in the order that they get in the target's."""
        return graph.nodes

    # Modules.

    def program(self, source: Source) -> Target:
        """The counterpart of ``source``, with all that it holds."""
        converted: Any = self._converted(source)
        if converted is None:
            converted = self._known_modules.get(id(source)) or self.make_program(source)
            self.modules[id(source)] = (source, converted)
            graph: Any = source.graph
            specs = {"_in_spec", "_out_spec"} if self.is_structured(graph) else set[str]()
            self._write_state(source, converted, _MADE | specs)
            self._write_graph(graph, converted.graph)
            self.write_code(source, converted)
        return converted

    def _converted(self, source: torch.nn.Module) -> torch.nn.Module | None:
        known = self.modules.get(id(source))
        return None if known is None else known[1]

    def _module(self, source: torch.nn.Module | None) -> torch.nn.Module | None:
        """Return what stands for a submodule: a program or container is converted, any other module is shared."""
        if isinstance(source, self.program_type):
            return self.program(source)  # type: ignore[arg-type]  which the class variable says
        if source is None or type(source) not in (torch.nn.Module, Container):
            return source
        converted = self._converted(source)
        if converted is None:
            converted = self._known_modules.get(id(source)) or self.container_type()
            self.modules[id(source)] = (source, converted)
            self._write_state(source, converted, frozenset())
        return converted

    def _write_state(self, source: torch.nn.Module, target: torch.nn.Module, made: frozenset[str]) -> None:
        """Give ``target`` all entries of ``source`` but those in ``made``, and no others."""
        state = {name: value for name, value in _entries(source).items() if name not in made}
        state["_modules"] = {name: self._module(child) for name, child in source._modules.items()}
        hooks = state["_load_state_dict_pre_hooks"]
        state["_load_state_dict_pre_hooks"] = {key: _rebound(hook, source, target) for key, hook in hooks.items()}
        entries = vars(target)
        for name in _entries(target).keys() - state.keys() - made:
            del entries[name]
        for name, value in state.items():
            if name in _HELD and isinstance(held := entries.get(name), (dict, set)):
                _refill(held, value)
            else:
                entries[name] = value

    # Graphs.

    def _write_graph(self, source: Any, target: Any) -> None:
        """Make ``target`` the program that ``source`` is."""
        pairs: list[tuple[Any, Any]] = []
        for node in self.nodes_of(source):
            made = self._known_nodes.get(node)
            if made is None or made.graph is not target:
                made = self._create(node, target)
            else:
                self._update(node, made)
            if made.name != node.name:
                made.name = node.name
            self.nodes[node] = made
            pairs.append((node, made))
        if len(target.nodes) > len(pairs):
            stay = {made for _, made in pairs}
            # Users first: a node that is used cannot be erased.
            for node in reversed(target.nodes):
                if node not in stay:
                    target.erase_node(node)
        for (_, before), (_, after) in pairwise(pairs):
            if before.next is not after:
                before.append(after)
        for node, made in pairs:
            self.write_notes(node, made, {key: self._note(value) for key, value in node.meta.items()})
        self.write_codegen(source, target)

    def _create(self, node: Any, graph: Any) -> Any:
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        made = graph.create_node(node.op, self._target(node.target), args, kwargs, node.name, node.type)
        self._arguments[made] = (made.args, made.kwargs)
        return made

    def _update(self, node: Any, made: Any) -> None:
        """Bring ``made``, from which ``node`` was made, in step with it; what did not change is not touched."""
        target = self._target(node.target)
        for name, value in (("op", node.op), ("target", target), ("type", node.type)):
            if getattr(made, name) is not value and getattr(made, name) != value:
                setattr(made, name, value)
        args, kwargs = self._given[node]
        if node.args is not args:
            made.args = self._argument(node.args)
        if node.kwargs is not kwargs:
            made.kwargs = self._argument(node.kwargs)

    def _argument(self, argument: Any) -> Any:
        """``argument`` in terms of the target's nodes."""
        nodes, node_type = self.nodes, self.node_type
        return map_aggregate(argument, lambda leaf: nodes[leaf] if isinstance(leaf, node_type) else leaf)

    def _target(self, target: Any) -> Any:
        try:
            return self.functions.get(target, target)
        except TypeError:  # an unhashable callable
            return target

    def _note(self, value: Any) -> Any:
        """A value of ``meta``: nodes and records are converted, also as members of a plain container."""
        kind = type(value)
        if kind not in (list, tuple, set, dict):
            return self._counterpart(value)
        members = (*value, *value.values()) if kind is dict else value
        if all(self._counterpart(member) is member for member in members):
            return value
        if kind is dict:
            return {self._counterpart(key): self._counterpart(member) for key, member in value.items()}
        return kind(map(self._counterpart, value))

    def _counterpart(self, value: Any) -> Any:
        kind = type(value)
        if kind is self.node_type:
            return self.nodes.get(value, value)
        record = self.records.get(kind)
        return value if record is None else record(*value)


def _entries(module: torch.nn.Module) -> dict[str, Any]:
    """``__dict__`` of ``module`` without what a program adds to it for speed, and without methods of its own.

    ``torch.export`` and PT2E set ``train`` and ``eval`` on their programs. In a copy they would act on the original.
    """
    entries = module.plain_state() if isinstance(module, QuickModule) else dict(vars(module))
    is_own = lambda value: isinstance(value, MethodType) and value.__self__ is module  # noqa: E731
    return {name: value for name, value in entries.items() if not is_own(value)}


def _refill(held: dict[Any, Any] | set[Any], value: Any) -> None:
    """Make ``held`` equal to ``value``; handles of hooks, and others who hold it, go on with the same object."""
    if isinstance(held, dict):
        same = list(held) == list(value) and all(held[key] is value[key] for key in held)
    else:
        same = held == value
    if not same:
        held.clear()
        held.update(value)


def _rebound(hook: Any, source: torch.nn.Module, target: torch.nn.Module) -> Any:
    """``hook``, which is called with the module it was registered on where it asked for that, for the new module."""
    if not isinstance(hook, _WrappedHook) or not hook.with_module or hook.module() is not source:
        return hook
    return _WrappedHook(hook.hook, target)
