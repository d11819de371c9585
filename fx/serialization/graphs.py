"""Graphs and notes as JSON and back: nodes by position, targets by names of :mod:`fx.serialization.allow_list`."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.analysis.verify import check_graph
from fx.code.codegen import CodeGen
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.errors import FxError, LoadError, SaveError, with_article
from fx.graph import Graph
from fx.naming.names import is_identifier
from fx.naming.printing import describe
from fx.node import OPCODES, Node
from fx.provenance import SourceLocation
from fx.serialization.allow_list import Refused, find, is_attribute, is_callable_target, methods, name_of
from fx.serialization.annotations import decode_annotation, encode_annotation
from fx.serialization.module_state import check_path
from fx.serialization.values import (
    LONGEST_NAME,
    Json,
    NoteWriter,
    ValueReader,
    ValueWriter,
    entry,
    is_name,
    printable,
    stored_object,
    stored_strings,
)

_NOTES = NoteWriter()


# Writing.


def encode_graph(root: torch.nn.Module, graph: Graph, place: str, values: ValueWriter) -> Json:
    """Return ``graph``, of the program ``root`` at ``place``, as JSON.

    Raises:
        SaveError: a part of the graph is not data; the message names the node.
    """
    check_graph(graph)
    writer = _GraphWriter(root, values)
    nodes = [writer.node(node) for node in graph.nodes]
    try:
        tensors = {name: value for name, value in graph.constants.items() if not isinstance(value, torch.nn.Module)}
        stored: dict[str, Json] = {
            "nodes": nodes,
            "constants": {name: values.value(value) for name, value in tensors.items()},  # modules are parts of `root`
            "sources": [list(parts) for parts in writer.sources],
            "notes": [note for _, note, _ in writer.notes.values()],
            "history": list(getattr(graph, "history", ())),
            "codegen": _encode_codegen(graph._codegen),
        }
    except Refused as refused:
        raise refused.as_error(SaveError, "cannot save the program", where=place) from refused
    return {"nodes": nodes, **{key: part for key, part in stored.items() if part}}


class _GraphWriter:
    """The writer of the nodes of one graph; it writes each source location and each shared note once."""

    def __init__(self, root: torch.nn.Module, values: ValueWriter) -> None:
        self.sources: dict[tuple[str, int, str, str], int] = {}
        self.notes: dict[int, tuple[int, Json, Any]] = {}
        self._root = root
        self._numbers: dict[Node, int] = {}
        self._values = ValueWriter(values.index, self._numbers)

    def node(self, node: Node) -> Json:
        try:
            return self._node(node)
        except Refused as refused:
            place = {"where": node.source, "value": describe(node)}
            raise refused.as_error(SaveError, "cannot save the program", **place) from refused

    def _node(self, node: Node) -> Json:
        is_function = node._op == "call_function"
        stored: dict[str, Json] = {
            "op": node._op,
            "name": node._name,
            "target": name_of(node._target) if is_function else node._target,
            "args": [self._values.value(argument) for argument in node._args],
            "kwargs": {key: self._values.value(argument) for key, argument in node._kwargs.items()},
            "type": encode_annotation(node._type),
            "meta": encode_notes(node._meta or {}, self._note),
            "origins": list(getattr(node, "origins", ())),
        }
        _check_node(self._root, node._name, node._op, node._target, node._args, node._kwargs)
        if node.source is not None:
            stored["source"] = self.sources.setdefault(node.source._parts(), len(self.sources))
        self._numbers[node] = len(self._numbers)
        return {key: part for key, part in stored.items() if key in ("target", "source") or part}

    def _note(self, value: dict[Any, Any]) -> Json:
        if id(value) not in self.notes:
            self.notes[id(value)] = (len(self.notes), _NOTES.value(value), value)
        return {"note": self.notes[id(value)][0]}


# Rules for both directions.


def _check_text_target(op: str, target: object) -> None:
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


_NUMBERS_OF_ARGUMENTS = {"placeholder": (0, 1), "get_attr": (0, 0), "output": (1, 1)}


def _check_node(root: torch.nn.Module, name: str, op: str, target: Any, args: Any, kwargs: Any) -> None:
    """Refuse a node of the program ``root`` that has no usual name, or calls something that a file may not call."""
    if len(name) > LONGEST_NAME or not name.isascii() or not name.isidentifier():
        raise Refused(f"{ascii(name)[:80]} is not a name of a node", remedy='rename it: node.name = "x"')
    if op in _NUMBERS_OF_ARGUMENTS:
        least, most = _NUMBERS_OF_ARGUMENTS[op]
        if kwargs or not least <= len(args) <= most:
            raise Refused(f"{with_article(op)} node has {len(args) + len(kwargs)} arguments")
    elif op == "call_method" and not args:
        raise Refused("a method is called on nothing")
    if op != "call_function":
        _check_text_target(op, target)
        if op in ("get_attr", "call_module"):
            check_path(root, op, target)
    elif target is getattr and (len(args) != 2 or kwargs or not is_attribute(args[1])):
        attribute = f"the attribute {ascii(args[1])[:80]}" if len(args) == 2 else "an attribute with a default"
        raise Refused(
            f"{attribute} is nothing that a saved program may read",
            why="files read attributes of tensors and the fields of results and of allowed classes",
            remedy="read it in a function, and allow that: fx.serialization.allow(function)",
        )


# Reading.


def decode_graph(root: torch.nn.Module, stored: Json, place: str, tensors: list[torch.Tensor]) -> Graph:
    """Return the graph that ``encode_graph`` stored, of the program ``root`` with its modules and tensors.

    Raises:
        LoadError: a node is not valid; the message names it.
    """
    optional = {"constants": {}, "sources": [], "notes": [], "history": [], "codegen": None}
    fields = stored_object(stored, "a graph", {"nodes": list}, optional)
    graph = Graph()
    reader = _GraphReader(root, graph, tensors, fields)
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
        graph.set_codegen(_decode_codegen(fields["codegen"]))
    return graph


class _GraphReader:
    """The reader of the nodes of one graph."""

    def __init__(
        self, root: torch.nn.Module, graph: Graph, tensors: list[torch.Tensor], fields: dict[str, Json]
    ) -> None:
        self._root = root
        self._graph = graph
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._values = ValueReader(tensors, self._nodes)
        self._data = ValueReader([])
        self._sources = [_location(parts) for parts in fields["sources"]]
        self._notes = [self._data.value(note) for note in fields["notes"]]

    def node(self, stored: Json) -> None:
        required = {"op": str, "name": str, "target": object}
        optional = {"args": [], "kwargs": {}, "type": None, "meta": {}, "source": None, "origins": []}
        record = stored_object(stored, "a node", required, optional)
        op, name, target = record["op"], record["name"], record["target"]
        if op not in OPCODES:
            raise Refused(f"{ascii(op)[:80]} is not an opcode")
        if name in self._names:
            raise Refused(f"two nodes are called {name!r}")
        args = tuple(self._values.items(record["args"], 0))
        kwargs = {key: self._values.value(value) for key, value in record["kwargs"].items()}
        if op == "call_function" and not is_callable_target(target := find(record["target"])):
            raise Refused(f"{ascii(record['target'])[:80]} is called, which a file may use as a value only")
        _check_node(self._root, name, op, target, args, kwargs)
        node = self._graph.create_node(op, target, args, kwargs, name, decode_annotation(record["type"]))
        if node._name != name:  # the user set a name that the graph would not choose
            node._name = name
        self._names.add(name)
        if record["meta"]:
            node.meta = {key: self._note(value) for key, value in record["meta"].items()}
        if record["source"] is not None:
            node.source = entry(self._sources, record["source"], "there is no place in the source number {}")
        node.origins = stored_strings(record["origins"])
        self._nodes.append(node)

    def _note(self, stored: Json) -> Any:
        if type(stored) is dict and stored.keys() == {"note"}:
            return entry(self._notes, stored["note"], "there is no note number {}")
        return self._data.value(stored)


def _location(stored: Json) -> SourceLocation:
    if type(stored) is not list or list(map(type, stored)) != [str, int, str, str]:
        raise Refused("a place in the source is not a file, line, function and text")
    file, line, function, text = stored
    return SourceLocation.of(printable(file), line, printable(function), printable(text))


# Notes of analyses and passes (``meta``): data is kept, the rest is not needed to run.


def encode_notes(meta: dict[str, Any], encode_dict: Callable[[dict[Any, Any]], Json] = _NOTES.value) -> dict[str, Json]:
    """Return the entries of ``meta`` that are data; ``encode_dict`` writes dicts."""
    stored: dict[str, Json] = {}
    for key, value in meta.items():
        with contextlib.suppress(Refused):
            if type(key) is str:
                stored[key] = encode_dict(value) if type(value) in (dict, OrderedDict) else _NOTES.value(value)
    return stored


def decode_notes(stored: dict[str, Json]) -> dict[str, Any]:
    """Return the notes that ``encode_notes`` stored."""
    data = ValueReader([])
    return {key: data.value(value) for key, value in stored.items()}


# Code generators of programs with structured inputs: names of parameters, structures of plain containers.


def _encode_codegen(codegen: CodeGen) -> Json:
    """Return ``codegen`` as JSON; None for the usual code generator."""
    if type(codegen) not in (CodeGen, PyTreeCodeGen):
        raise Refused(
            f"its code is written by {with_article(type(codegen).__qualname__)}",
            why="a file holds no code, so it can name only fx's own code generators",
            remedy="graph.set_codegen(fx.CodeGen()), if its inputs and outputs need no other form",
        )
    if codegen.body_transformer is not None:
        raise Refused(
            "a function rewrites its code", why="it was registered with on_generate_code, and a file holds no code"
        )
    if not isinstance(codegen, PyTreeCodeGen):
        return None
    info = codegen.pytree_info
    outputs = None if info.out_spec is None else {"structure": _encode_structure(info.out_spec)}
    return {"parameters": list(info.orig_args), "inputs": _encode_structure(info.in_spec), "outputs": outputs}


def _encode_structure(spec: pytree.TreeSpec) -> Json:
    """Return the structure as a value of this structure whose leaves are all 0."""
    stored = ValueWriter().value(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    if _structure(stored) != spec:
        raise Refused(f"an input or the output has the structure {spec}", why="a file names plain containers only")
    return stored


def _decode_codegen(stored: Json) -> PyTreeCodeGen:
    """Return the code generator that ``stored`` describes."""
    required = {"parameters": list, "inputs": object, "outputs": object}
    fields = stored_object(stored, "a code generator", required)
    parameters = stored_strings(fields["parameters"])
    named = [parameter for parameter in parameters if parameter != "*"]
    for parameter in named:  # it becomes source
        _check_text_target("placeholder", parameter)
    if len({parameter.lstrip("*") for parameter in named}) != len(named):
        raise Refused("two parameters of the program have one name")
    if len(parameters) - len(named) > 1 or parameters[-1:] == ("*",):
        raise Refused("the bare star of keyword-only parameters is not in front of one")
    outputs = fields["outputs"]
    if outputs is not None:
        outputs = _structure(stored_object(outputs, "the output", {"structure": object})["structure"])
    return PyTreeCodeGen(PyTreeInfo(list(parameters), _structure(fields["inputs"]), outputs))


def _structure(stored: Json) -> pytree.TreeSpec:
    return pytree.tree_structure(ValueReader([]).value(stored))
