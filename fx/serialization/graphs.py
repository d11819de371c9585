"""Graphs and notes as JSON and back: nodes by position, targets by names of :mod:`fx.serialization.allow_list`."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from fx.analysis.verify import check_graph
from fx.container_kinds import held_kind
from fx.errors import FxError, LoadError, SaveError, with_article
from fx.graph import Graph
from fx.naming.names import is_identifier
from fx.naming.printing import describe
from fx.node import OPCODES, Node
from fx.provenance import SourceLocation
from fx.serialization.allow_list import Refused, find, is_attribute, is_callable_target, methods, name_of
from fx.serialization.annotations import decode_annotation, encode_annotation
from fx.serialization.saved_signatures import decode_codegen, encode_codegen
from fx.serialization.values import (
    DEPTH,
    LONGEST_NAME,
    Json,
    ValueReader,
    ValueWriter,
    entry,
    is_name,
    printable,
    stored_object,
    stored_strings,
)

_DATA = ValueWriter(None)
PathCheck = Callable[[str, str], None]
"""A function that refuses invalid paths of an opcode."""


# Writing.


def encode_graph(graph: Graph, place: str, values: ValueWriter, check_path: PathCheck) -> Json:
    """Return ``graph``, at ``place`` in the program, as JSON; ``check_path`` refuses paths of attributes and modules.

    Raises:
        SaveError: a part of the graph is not data; the message names the node.
    """
    check_graph(graph)
    writer = _GraphWriter(values, check_path)
    nodes = [writer.node(node) for node in graph.nodes]
    try:
        stored: dict[str, Json] = {"nodes": nodes}
        tensors = {name: value for name, value in graph.constants.items() if not isinstance(value, torch.nn.Module)}
        constants = {name: values.value(value) for name, value in tensors.items()}  # modules are parts of the program
        for key, entries in (("constants", constants), ("sources", writer.sources), ("notes", writer.notes)):
            if entries:
                stored[key] = entries if isinstance(entries, dict) else list(entries)
        if history := list(getattr(graph, "history", ())):
            stored["history"] = history
        if (codegen := encode_codegen(graph._codegen)) is not None:
            stored["codegen"] = codegen
    except Refused as refused:
        raise refused.as_error(SaveError, "cannot save the program", where=place) from refused
    return stored


class _GraphWriter:
    """The writer of the nodes of one graph; it writes each source location and each shared note once."""

    def __init__(self, values: ValueWriter, check_path: PathCheck) -> None:
        self.sources: list[Json] = []
        self.notes: list[Json] = []
        self._source_numbers: dict[tuple[str, int, str, str], int] = {}
        self._note_numbers: dict[int, tuple[int, Any]] = {}
        self._numbers: dict[Node, int] = {}
        self._values = ValueWriter(values._tensors, self._numbers)
        self._check_path = check_path

    def node(self, node: Node) -> Json:
        try:
            return self._node(node)
        except Refused as refused:
            place = {"where": node.source, "value": describe(node)}
            raise refused.as_error(SaveError, "cannot save the program", **place) from refused

    def _node(self, node: Node) -> Json:
        name = node._name
        if len(name) > LONGEST_NAME or not name.isascii() or not name.isidentifier():
            raise Refused(f"{name!r} is not a name of a node", remedy='rename it: node.name = "x"')
        stored: dict[str, Json] = {"op": node._op, "name": name, "target": self._target(node)}
        if node._args:
            stored["args"] = [self._values.value(argument) for argument in node._args]
        if node._kwargs:
            stored["kwargs"] = {key: self._values.value(argument) for key, argument in node._kwargs.items()}
        _check_shape(node._op, len(node._args), len(node._kwargs))
        if node._type is not None:
            stored["type"] = encode_annotation(node._type)
        if node._meta and (meta := encode_notes(node._meta, self._note)):
            stored["meta"] = meta
        if node.source is not None:
            stored["source"] = self._source(node.source)
        if origins := getattr(node, "origins", ()):
            stored["origins"] = list(origins)
        self._numbers[node] = len(self._numbers)
        return stored

    def _target(self, node: Node) -> Json:
        target = node._target
        if node._op == "call_function":
            name = name_of(target)
            _check_function(target, node._args, bool(node._kwargs))
            return name
        check_text_target(node._op, target)
        if node._op in ("get_attr", "call_module"):
            self._check_path(node._op, str(target))
        return target

    def _source(self, source: SourceLocation) -> int:
        parts = source._parts()
        number = self._source_numbers.setdefault(parts, len(self.sources))
        if number == len(self.sources):
            self.sources.append(list(parts))
        return number

    def _note(self, value: dict[Any, Any]) -> Json:
        numbered = self._note_numbers.get(id(value))
        if numbered is None:
            self.notes.append(encode_note(value))
            numbered = self._note_numbers[id(value)] = (len(self.notes) - 1, value)
        return {"note": numbered[0]}


# Rules for both directions.


def check_text_target(op: str, target: object) -> None:
    """Refuse a string that is not a target for nodes of the opcode ``op``."""
    if type(target) is not str:
        raise Refused(f"the target of {with_article(op)} node is a string, not {type(target).__name__}")
    if op == "placeholder":
        name = target.lstrip("*")
        if not is_name(target) or not is_identifier(name) or len(target) - len(name) > 2:
            raise Refused(f"{ascii(target)[:80]} is not a name of a parameter")
    elif op == "call_method":
        if target not in methods():
            raise Refused(
                f"the method {ascii(target)[:80]} is nothing that a saved program may use",
                why="files name methods of tensors and of Python's plain values",
                remedy="call it in a function, and allow that: fx.serialization.allow(function)",
            )
    elif not all(map(is_name, target.split("."))):
        raise Refused(f"the path {ascii(target)[:80]} has parts that are empty, unprintable or very long")


def _check_function(target: Any, args: tuple[Any, ...], has_kwargs: bool) -> None:
    if target is getattr and (len(args) != 2 or has_kwargs or not is_attribute(args[1])):
        attribute = f"the attribute {ascii(args[1])[:80]}" if len(args) == 2 else "an attribute with a default"
        raise Refused(
            f"{attribute} is nothing that a saved program may read",
            why="files read attributes of tensors and the fields of results and of allowed classes",
            remedy="read it in a function, and allow that: fx.serialization.allow(function)",
        )


def _check_shape(op: str, args: int, kwargs: int) -> None:
    """Refuse numbers of arguments that nodes of ``op`` never have."""
    if op in ("placeholder", "get_attr", "output"):
        least, most = {"placeholder": (0, 1), "get_attr": (0, 0), "output": (1, 1)}[op]
        if kwargs or not least <= args <= most:
            raise Refused(f"{with_article(op)} node has {args + kwargs} arguments")
    elif op == "call_method" and not args:
        raise Refused("a method is called on nothing")


# Reading.


def decode_graph(stored: Json, place: str, tensors: list[torch.Tensor], check_path: PathCheck) -> Graph:
    """Return the graph that ``encode_graph`` stored.

    Raises:
        LoadError: a node is not valid; the message names it.
    """
    optional = {"constants": {}, "sources": [], "notes": [], "history": [], "codegen": None}
    fields = stored_object(stored, "a graph", {"nodes": list}, optional)
    graph = Graph()
    reader = _GraphReader(graph, tensors, fields, check_path)
    for number, record in enumerate(fields["nodes"]):
        name = record.get("name") if type(record) is dict else None
        where = f"{place}, node {number}" + (f" ({name})" if is_name(name) else "")
        try:
            reader.node(record)
        except Refused as refused:
            raise refused.as_error(LoadError, "cannot load the program", where=where) from refused
        except FxError as error:
            raise LoadError(
                "cannot load the program: the graph refuses a node", where=where, why=printable(str(error))
            ) from error
    values = ValueReader(tensors)
    for name, value in fields["constants"].items():
        if not is_name(name):
            raise Refused(f"{ascii(name)[:80]} is not a name of an attribute")
        graph.constants[name] = values.value(value)
    graph.history = stored_strings(fields["history"])
    if fields["codegen"] is not None:
        graph.set_codegen(decode_codegen(fields["codegen"]))
    return graph


class _GraphReader:
    """The reader of the nodes of one graph."""

    def __init__(
        self, graph: Graph, tensors: list[torch.Tensor], fields: dict[str, Json], check_path: PathCheck
    ) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._values = ValueReader(tensors, self._nodes)
        self._data = ValueReader([])
        self._check_path = check_path
        self._sources = [_location(parts) for parts in fields["sources"]]
        self._notes = [self._data.value(note) for note in fields["notes"]]

    def node(self, stored: Json) -> None:
        required = {"op": str, "name": str, "target": object}
        optional = {"args": [], "kwargs": {}, "type": None, "meta": {}, "source": None, "origins": []}
        record = stored_object(stored, "a node", required, optional)
        op, name = record["op"], record["name"]
        if op not in OPCODES:
            raise Refused(f"{ascii(op)[:80]} is not an opcode")
        if len(name) > LONGEST_NAME or not name.isascii() or not name.isidentifier():
            raise Refused(f"{ascii(name)[:80]} is not a name of a node")
        if name in self._names:
            raise Refused(f"two nodes are called {name!r}")
        args = tuple(self._values.items(record["args"], 0))
        kwargs = {key: self._values.value(value) for key, value in record["kwargs"].items()}
        _check_shape(op, len(args), len(kwargs))
        target = self._target(op, record["target"], args, bool(kwargs))
        node = self._graph.create_node(op, target, args, kwargs, name, decode_annotation(record["type"]))
        if node._name != name:  # the user set a name that the graph would not choose
            node._name = name
        self._names.add(name)
        if record["meta"]:
            node.meta = self._meta(record["meta"])
        if record["source"] is not None:
            node.source = entry(self._sources, record["source"], "there is no place in the source number {}")
        node.origins = stored_strings(record["origins"])
        self._nodes.append(node)

    def _target(self, op: str, stored: Json, args: tuple[Any, ...], has_kwargs: bool) -> Any:
        if op == "call_function":
            target = find(stored)
            if not is_callable_target(target):
                raise Refused(f"{ascii(stored)[:80]} is called, which a file may use as a value only")
            _check_function(target, args, has_kwargs)
            return target
        check_text_target(op, stored)
        if op in ("get_attr", "call_module"):
            self._check_path(op, stored)
        return stored

    def _meta(self, stored: dict[str, Json]) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        for key, value in stored.items():
            if type(value) is dict and value.keys() == {"note"}:
                meta[key] = entry(self._notes, value["note"], "there is no note number {}")
            else:
                meta[key] = self._data.value(value)
        return meta


def _location(stored: Json) -> SourceLocation:
    if type(stored) is not list or list(map(type, stored)) != [str, int, str, str]:
        raise Refused("a place in the source is not a file, line, function and text")
    file, line, function, text = stored
    return SourceLocation.of(printable(file), line, printable(function), printable(text))


# Notes of analyses and passes (``meta``): data is kept, the rest is not needed to run.


def encode_note(value: Any) -> Json:
    """Return one note as JSON, without entries of dicts that are not data."""
    return _DATA.value(_plain(value))


def encode_notes(meta: dict[str, Any], encode_dict: Callable[[dict[Any, Any]], Json] = encode_note) -> dict[str, Json]:
    """Return the entries of ``meta`` that are data; ``encode_dict`` writes dicts."""
    stored: dict[str, Json] = {}
    for key, value in meta.items():
        if type(key) is str:
            with contextlib.suppress(Refused):
                is_dict = type(value) in (dict, OrderedDict)
                stored[key] = encode_dict(value) if is_dict else encode_note(value)
    return stored


def decode_notes(stored: dict[str, Json]) -> dict[str, Any]:
    """Return the notes that ``encode_notes`` stored."""
    data = ValueReader([])
    return {key: data.value(value) for key, value in stored.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the part of a note that is data: classes that a file may not name become strings, the rest is dropped."""
    if depth > DEPTH:
        raise Refused("a note nests too deeply")
    if isinstance(value, type):
        try:
            name_of(value)
        except Refused:
            return f"{value.__module__}.{value.__qualname__}"
        return value
    kind = held_kind(value)
    if kind is None or kind.tag is None:
        _DATA.value(value)
        return value
    if not kind.is_keyed:
        return kind.rebuild(value, [_plain(part, depth + 1) for part in kind.parts(value)])
    entries: dict[Any, Any] = {}
    for key, item in value.items():
        with contextlib.suppress(Refused):
            entries[_plain(key, depth + 1)] = _plain(item, depth + 1)
    return kind.rebuild(entries, list(entries.values()))
