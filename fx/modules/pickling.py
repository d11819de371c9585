"""Graphs as plain data for ``pickle``: nodes by number, targets by name, each checked by an import."""

from __future__ import annotations

import copy
import copyreg
import importlib
import pickle
import sys
from collections.abc import Callable
from functools import reduce
from types import FunctionType, GenericAlias
from typing import TYPE_CHECKING, Any, ForwardRef, NamedTuple

import torch

from fx.container_kinds import ContainerKind, held_kind, map_parts
from fx.errors import PickleError, type_in_words
from fx.naming.printing import describe
from fx.naming.targets import torch_path
from fx.node import Node, map_aggregate
from fx.provenance import SourceLocation

if TYPE_CHECKING:
    from fx.graph import Graph


class NodeNumber(NamedTuple):
    """The placeholder for a node in pickled arguments."""

    number: int
    """The position of the node in its graph, from 0."""


class ImportedName(NamedTuple):
    """The placeholder for a function or class in a pickled graph."""

    module: str
    """The module to import."""
    path: str
    """The dotted path inside it."""

    def resolve(self) -> Any:
        """Import the module and follow the path."""
        return reduce(getattr, self.path.split("."), importlib.import_module(self.module))


class PickledNode(NamedTuple):
    """One node as data. ``text`` is the node as printed, for messages."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    type: Any
    meta: dict[str, Any] | None
    source: SourceLocation | None
    origins: tuple[str, ...]
    text: str
    attributes: dict[str, Any] | None = None
    """Attributes set on the node, as far as they are data."""


def encode(graph: Graph) -> dict[str, Any]:
    """Return ``graph`` as data for a pickle.

    Raises:
        PickleError: a node's target cannot be imported by name, such as a lambda or a local function.
    """
    numbers: dict[Node, NodeNumber] = {}
    metas: dict[int, Any] = {}
    nodes: list[PickledNode] = []
    for number, node in enumerate(graph.nodes):
        leaf = _leaf_encoder(node, numbers)
        target = node.target if isinstance(node.target, str) else leaf(node.target)
        own = type(target) is ImportedName and target.module not in ("torch", "operator")
        nodes.append(
            PickledNode(
                node.op,
                node.name,
                target,
                map_aggregate(node.args, leaf),
                map_aggregate(node.kwargs, leaf),
                _annotation(node),
                _plain(node.meta, metas) if node._meta else None,
                node.source,
                node.origins,
                describe(node) if own else "",
                _plain(vars(node), metas) if vars(node) else None,
            )
        )
        numbers[node] = NodeNumber(number)
    tracer = graph._tracer_cls
    return {
        "nodes": nodes,
        "constants": graph.constants,
        "history": graph.history,
        "codegen": _codegen(graph),
        "tracer_cls": imported_name(tracer) if tracer is not None else None,
    }


def decode(graph: Graph, state: dict[str, Any]) -> None:
    """Fill the empty ``graph`` from the data of ``encode``.

    Raises:
        PickleError: a target is no longer found.
    """
    nodes: list[Node] = []

    def leaf(value: Any) -> Any:
        kind = type(value)
        if kind is NodeNumber:
            return nodes[value.number]
        return value.resolve() if kind is ImportedName else value

    for pickled in state["nodes"]:
        target = pickled.target
        if type(target) is ImportedName:
            target = _resolved(pickled, target)
        node = graph.create_node(
            pickled.op,
            target,
            _map_encoded(pickled.args, leaf),
            _map_encoded(pickled.kwargs, leaf),
            pickled.name,
            leaf(pickled.type),
        )
        if pickled.meta is not None:
            node.meta = _restored(pickled.meta)
        if pickled.attributes is not None:
            vars(node).update(_restored(pickled.attributes))
        node.source = pickled.source
        node.origins = pickled.origins
        nodes.append(node)
    graph.constants = state["constants"]
    graph.history = state["history"]
    graph.set_codegen(state["codegen"])
    tracer = state["tracer_cls"]
    graph._tracer_cls = tracer.resolve() if tracer is not None else None


def imported_name(value: Any) -> ImportedName | None:
    """Return the name under which ``value`` can be imported, or None."""
    if (path := torch_path(value)) is not None:
        return ImportedName("torch", path.partition(".")[2])
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return None
    if module == "_operator":
        module = "operator"
    name = ImportedName(module, path)
    try:
        return name if module in sys.modules and name.resolve() is value else None
    except AttributeError:
        return None


def _leaf_encoder(node: Node, numbers: dict[Node, NodeNumber]) -> Callable[[Any], Any]:
    def leaf(value: Any) -> Any:
        if isinstance(value, Node):
            return numbers[value]
        if isinstance(value, torch.memory_format):
            return _format_name(value)
        if not callable(value):
            return _picklable(value, node)
        if (name := imported_name(value)) is not None:
            return name
        if not isinstance(value, (FunctionType, type)):
            return _picklable(value, node)
        raise PickleError(
            f"cannot pickle the program: node {node.name} uses {value!r}, which cannot be imported",
            where=node.source,
            value=describe(node),
            why="a local function, a lambda, or one that was replaced in its module has no importable name",
            remedy="define it at the top level of a module, or retrace without fx.wrap so that it is not a node",
        )

    return leaf


def _picklable(value: Any, node: Node) -> Any:
    """Return ``value``, an argument or the target of ``node``; refuse it unless it can be pickled."""
    if isinstance(value, _PLAIN) and not isinstance(value, torch.Size):
        return value
    try:
        pickle.dumps(value)
    except Exception as error:
        raise PickleError(
            f"cannot pickle the program: node {node.name} uses {type_in_words(value)}, which cannot be pickled",
            where=node.source,
            value=describe(node),
            why=f"{type(error).__name__}: {error}",
            remedy="let a node compute the value, or pass it as an input",
        ) from error
    return value


def _map_encoded(argument: Any, leaf: Callable[[Any], Any]) -> Any:
    """Map the leaves of an argument, as ``map_aggregate`` does, with this module's named tuples as leaves."""
    kind = type(argument)
    if kind is NodeNumber or kind is ImportedName:
        return leaf(argument)
    return map_parts(lambda part: _map_encoded(part, leaf), argument)


def _resolved(pickled: PickledNode, target: ImportedName) -> Any:
    try:
        return target.resolve()
    except (ImportError, AttributeError) as error:
        raise PickleError(
            f"cannot unpickle the program: node {pickled.name} calls {target.module}.{target.path}, which is not found",
            where=pickled.source,
            value=pickled.text or None,
            why=f"{type(error).__name__}: {error}",
            remedy="import or define it under that name before unpickling",
        ) from error


def _format_name(value: torch.memory_format) -> ImportedName:
    """Return the name of a memory format; its own pickle fails in protocol 2, which ``torch.save`` uses."""
    return ImportedName("torch", str(value).removeprefix("torch."))


# The "Tensor" of List["Tensor"] has compiled code, which pickle refuses.
copyreg.pickle(ForwardRef, lambda reference: (ForwardRef, (reference.__forward_arg__,)))


def _annotation(node: Node) -> Any:
    """Return the type of a node as data; None if it cannot be imported, as local classes and type parameters."""
    kind = node.type
    if isinstance(kind, type) and not isinstance(kind, GenericAlias):  # on Python 3.10, list[int] is both
        return imported_name(kind)
    try:
        pickle.dumps(kind)
    except Exception:
        return None
    return kind


def _codegen(graph: Graph) -> Any:
    """Return the code generator, without its transformer of lines if that cannot be imported."""
    codegen = graph._codegen
    if codegen.body_transformer is not None and imported_name(codegen.body_transformer) is None:
        codegen = copy.copy(codegen)
        codegen.body_transformer = None
    return codegen


_PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout,
          torch.memory_format, SourceLocation)  # fmt: skip


class _Missing:
    """The mark of an entry of ``meta`` that is not data, hence left out."""


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """Return the part of ``meta`` that is data; classes become names. Shared values stay shared."""
    if isinstance(value, torch.memory_format):
        return _format_name(value)
    if isinstance(value, _PLAIN):
        return value if type(value) is not torch.Size or all(type(size) is int for size in value) else _Missing
    if id(value) in seen:
        return seen[id(value)][1]
    result: Any = _Missing
    kind = held_kind(value)
    if kind is not None and kind.tag is not None:  # other containers may hold more than their parts
        items = [(label, _plain(part, seen)) for label, part in zip(kind.labels(value), kind.parts(value), strict=True)]
        data = [(label, part) for label, part in items if part is not _Missing]
        if kind.is_keyed:
            result = type(value)((key, part) for key, part in data if isinstance(key, _PLAIN))
        elif len(data) == len(items):
            result = _like(kind, value, [part for _, part in data])
    elif isinstance(value, type):
        result = imported_name(value) or f"{value.__module__}.{value.__qualname__}"
    seen[id(value)] = (value, result)
    return result


def _restored(value: Any) -> Any:
    """Return ``meta`` with names replaced by the classes, if these can be imported."""
    if type(value) is ImportedName:
        try:
            return value.resolve()
        except (ImportError, AttributeError):
            return f"{value.module}.{value.path}"
    kind = held_kind(value)
    return value if kind is None else _like(kind, value, [_restored(part) for part in kind.parts(value)])


def _like(kind: ContainerKind, value: Any, parts: list[Any]) -> Any:
    """Return a container of these parts, frozen if ``value`` is."""
    return (kind.freeze if type(value) is kind.frozen else kind.rebuild)(value, parts)
