"""``Translation``: rebuild programs of one library in the other, node by node and module by module."""

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

_REGISTRIES = frozenset(name for name, value in vars(torch.nn.Module()).items() if isinstance(value, (dict, set))) | {
    "meta"
}
"""Entries of a module that are registries, such as ``_parameters``; each module keeps its own containers."""

_GENERATED = frozenset(
    set(vars(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()))).difference(vars(torch.nn.Module()), {"meta"})
    | {"_graph", "_written", "_code_revision", "_tracer_cls", "_tracer_extras", "_lineno_map", "_prologue_start"}
)
"""Entries of a program, in either library, that are generated from its graph or internal to the library."""


class Translation(Generic[Source, Target]):
    """One conversion of programs and their modules; each module is converted once, however often it is used.

    Tensors, and modules that are neither programs nor plain containers, are shared with the source.

    ``back_from`` is an earlier conversion that created the source. The programs, containers and nodes that it created
    are written back into their originals, which keep their identity and take the changes.
    """

    nodes: dict[Any, Any]
    """The target node of each source node, in order."""
    modules: dict[int, tuple[torch.nn.Module, torch.nn.Module]]
    """Converted programs and containers by the identity of the source: pairs of source and target."""

    program_type: ClassVar[type[torch.nn.Module]]
    """The class of programs in the source's library."""
    node_type: ClassVar[type[Any]]
    """The class of nodes in the source's library."""
    container_type: ClassVar[type[torch.nn.Module]]
    """The class of plain containers of modules in the target's library."""
    functions: ClassVar[dict[Any, Any]]
    """The counterparts of functions of the source's library in the target's."""
    records: ClassVar[dict[type[Any], type[Any]]]
    """The counterparts of classes of named tuples in ``meta``; the fields are the same."""

    def __init__(self, back_from: Translation[Any, Any] | None = None) -> None:
        self.nodes = {}
        self.modules = {}
        self._arguments: dict[Any, tuple[Any, Any]] = {}  # arguments of the created nodes
        self._known_nodes: dict[Any, Any] = {}
        self._known_modules: dict[int, torch.nn.Module] = {}
        self._original_arguments: dict[Any, tuple[Any, Any]] = {}
        if back_from is not None:
            self._known_nodes = {target: node for node, target in back_from.nodes.items()}
            self._known_modules = {id(target): module for module, target in back_from.modules.values()}
            self._original_arguments = back_from._arguments

    # Hooks for the two directions.

    @abstractmethod
    def make_program(self, source: Source) -> Target:
        """Return a program without nodes or state, named like ``source``."""

    @abstractmethod
    def write_codegen(self, source: Any, target: Any) -> None:
        """Give the graph ``target`` the counterpart of the code generator of ``source``, if it differs."""

    @abstractmethod
    def write_notes(self, source: Any, target: Any, meta: dict[str, Any]) -> None:
        """Give the node ``target`` the notes of ``source``; ``meta`` refers to converted nodes already."""

    @abstractmethod
    def is_structured(self, graph: Any) -> bool:
        """Return whether the graph takes structured inputs, so that its module stores their structure."""

    def write_code(self, source: Any, target: Any) -> None:
        """Compile the graph of ``target``, whose inner programs are converted already."""
        target.recompile()

    def nodes_of(self, graph: Any) -> Iterable[Any]:
        """Return the nodes of a source graph in the order of the target graph."""
        return graph.nodes

    # Modules.

    def program(self, source: Source) -> Target:
        """Return the counterpart of ``source``, with its graph, state and modules."""
        converted: Any = self._converted(source)
        if converted is None:
            converted = self._known_modules.get(id(source)) or self.make_program(source)
            self.modules[id(source)] = (source, converted)
            graph: Any = source.graph
            specs = {"_in_spec", "_out_spec"} if self.is_structured(graph) else set[str]()
            self._write_state(source, converted, _GENERATED | specs)
            self._write_graph(graph, converted.graph)
            self.write_code(source, converted)
        return converted

    def _converted(self, source: torch.nn.Module) -> torch.nn.Module | None:
        pair = self.modules.get(id(source))
        return None if pair is None else pair[1]

    def _module(self, source: torch.nn.Module | None) -> torch.nn.Module | None:
        """Return the counterpart of a submodule: programs and containers are converted, other modules are shared."""
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

    def _write_state(self, source: torch.nn.Module, target: torch.nn.Module, excluded: frozenset[str]) -> None:
        """Make the entries of ``target`` those of ``source``, apart from the names in ``excluded``."""
        state = {name: value for name, value in _entries(source).items() if name not in excluded}
        state["_modules"] = {name: self._module(child) for name, child in source._modules.items()}
        hooks = state["_load_state_dict_pre_hooks"]
        state["_load_state_dict_pre_hooks"] = {key: _rebound(hook, source, target) for key, hook in hooks.items()}
        entries = vars(target)
        for name in _entries(target).keys() - state.keys() - excluded:
            del entries[name]
        for name, value in state.items():
            if name in _REGISTRIES and isinstance(registry := entries.get(name), (dict, set)):
                _refill(registry, value)
            else:
                entries[name] = value

    # Graphs.

    def _write_graph(self, source: Any, target: Any) -> None:
        """Make the nodes of ``target`` the counterparts of those of ``source``, in order."""
        pairs: list[tuple[Any, Any]] = []
        for node in self.nodes_of(source):
            converted = self._known_nodes.get(node)
            if converted is None or converted.graph is not target:
                converted = self._create(node, target)
            else:
                self._update(node, converted)
            if converted.name != node.name:
                converted.name = node.name
            self.nodes[node] = converted
            pairs.append((node, converted))
        if len(target.nodes) > len(pairs):
            stay = {converted for _, converted in pairs}
            # Users first: a node with users cannot be erased.
            for node in reversed(target.nodes):
                if node not in stay:
                    target.erase_node(node)
        for (_, before), (_, after) in pairwise(pairs):
            if before.next is not after:
                before.append(after)
        for node, converted in pairs:
            self.write_notes(node, converted, {key: self._note(value) for key, value in node.meta.items()})
        self.write_codegen(source, target)

    def _create(self, node: Any, graph: Any) -> Any:
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        created = graph.create_node(node.op, self._target(node.target), args, kwargs, node.name, node.type)
        self._arguments[created] = (created.args, created.kwargs)
        return created

    def _update(self, node: Any, target_node: Any) -> None:
        """Write the changes of ``node`` to ``target_node``, its original; unchanged fields are not assigned."""
        target = self._target(node.target)
        for name, value in (("op", node.op), ("target", target), ("type", node.type)):
            if getattr(target_node, name) is not value and getattr(target_node, name) != value:
                setattr(target_node, name, value)
        args, kwargs = self._original_arguments[node]
        if node.args is not args:
            target_node.args = self._argument(node.args)
        if node.kwargs is not kwargs:
            target_node.kwargs = self._argument(node.kwargs)

    def _argument(self, argument: Any) -> Any:
        """Return ``argument`` with nodes replaced by their targets."""
        nodes, node_type = self.nodes, self.node_type
        return map_aggregate(argument, lambda leaf: nodes[leaf] if isinstance(leaf, node_type) else leaf)

    def _target(self, target: Any) -> Any:
        try:
            return self.functions.get(target, target)
        except TypeError:  # an unhashable callable
            return target

    def _note(self, value: Any) -> Any:
        """Convert nodes and records in a value of ``meta``, also as members of a plain container."""
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
    """Return ``__dict__`` of ``module`` without the entries that speed up a program, and without bound methods.

    ``torch.export`` and PT2E set ``train`` and ``eval`` on their programs. In a copy they would act on the original.
    """
    entries = module.plain_state() if isinstance(module, QuickModule) else dict(vars(module))
    is_own = lambda value: isinstance(value, MethodType) and value.__self__ is module  # noqa: E731
    return {name: value for name, value in entries.items() if not is_own(value)}


def _refill(registry: dict[Any, Any] | set[Any], value: Any) -> None:
    """Make ``registry`` equal to ``value`` in place, since handles of hooks refer to the container itself."""
    if isinstance(registry, dict):
        same = list(registry) == list(value) and all(registry[key] is value[key] for key in registry)
    else:
        same = registry == value
    if not same:
        registry.clear()
        registry.update(value)


def _rebound(hook: Any, source: torch.nn.Module, target: torch.nn.Module) -> Any:
    """Return ``hook`` for the module ``target``: a hook that takes its module is wrapped again, others are returned."""
    if not isinstance(hook, _WrappedHook) or not hook.with_module or hook.module() is not source:
        return hook
    return _WrappedHook(hook.hook, target)
