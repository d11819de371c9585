"""Where a node came from: the user's file and line (paper, section 5.3: errors point at the user's code)."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from fx.container_kinds import held_kind

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Node

GENERATED_FILES: dict[str, Callable[[int], SourceLocation | None]] = {}
"""For the file name of each piece of generated code alive: from its lines to those of the program it was made from."""


def line_of(code: CodeType, offset: int) -> int:
    """Line number of the instruction at byte ``offset`` of ``code``."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


class SourceLocation:
    """A place in the user's program.

    Tracing makes them by the thousand, so all but the address is worked out when it is asked for.
    """

    __slots__ = ("_code", "_offset", "_resolved", "is_compared")

    is_compared: bool | None
    """Whether code may compare by identity what it computes there; None before anybody has looked."""

    def __init__(self, code: CodeType | None, offset: int) -> None:
        self._code = code
        self._offset = offset
        self._resolved: tuple[str, int, str, str] | None = None
        self.is_compared = None

    @classmethod
    def of(cls, file: str, line: int, function: str, text: str = "") -> SourceLocation:
        """A location whose parts are known."""
        location = cls(None, 0)
        location._resolved = (file, line, function, text)
        return location

    def is_at(self, code: CodeType, offset: int) -> bool:
        """Return whether it is this instruction."""
        return self._code is code and self._offset == offset

    def _parts(self) -> tuple[str, int, str, str]:
        if self._resolved is None:
            code = self._code
            assert code is not None
            line = line_of(code, self._offset)
            text = linecache.getline(code.co_filename, line).strip()
            function = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            self._resolved = (code.co_filename, line, function, text)
        return self._resolved

    @property
    def file(self) -> str:
        """Path of the file, as Python reports it in tracebacks."""
        return self._parts()[0]

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return self._parts()[1]

    @property
    def place(self) -> str:
        """File and line as every message has them, which editors and terminals take for a link: ``model.py:12``."""
        return f"{self.file}:{self.line}"

    @property
    def function(self) -> str:
        """Qualified name of the function (its plain name on Python 3.10)."""
        return self._parts()[2]

    @property
    def text(self) -> str:
        """The source line, stripped; empty where the file cannot be read."""
        return self._parts()[3]

    def traceback(self) -> str:
        """The location as one entry of a Python traceback."""
        file, line, function, text = self._parts()
        return f'File "{file}", line {line}, in {function.rpartition(".")[2]}\n    {text}\n'

    def __str__(self) -> str:
        _, _, function, text = self._parts()
        return f"{self.place}, in {function}:  {text}" if text else f"{self.place}, in {function}"

    def __repr__(self) -> str:
        return f"SourceLocation({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceLocation) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __copy__(self) -> SourceLocation:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SourceLocation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceLocation.of, self._parts()


def inherit(node: Node, sources: Iterable[Node]) -> None:
    """Let ``node`` stand for what ``sources`` came from as well: their origins, and a line where it has none."""
    for source in sources:
        if source._origins and source._origins is not node._origins:
            node.add_origins(source._origins)
        if node.source is None:
            node.source = source.source


def record_origins(graph: Graph) -> None:
    """Before a pass: let every node that has no origins yet be its own."""
    for node in graph.nodes:
        if not node._origins:
            node.origins = (node.name,)


@dataclass(frozen=True, slots=True)
class EarlierNode:
    """What a node was before a pass."""

    op: str
    """Its opcode."""
    target: Any
    """What it called or fetched."""
    origins: tuple[str, ...]
    """The nodes of the captured program that it stood for."""
    source: SourceLocation | None
    """The user's line."""
    inputs: Mapping[tuple[Any, ...], str]
    """Names of the nodes that it read, by their places among its arguments."""

    @classmethod
    def all_of(cls, graph: Graph) -> dict[str, EarlierNode]:
        """Every node of a graph, by name."""
        return {
            node.name: cls(
                node.op, node.target, node.origins, node.source,
                {place: read.name for place, read in _inputs_by_place(node)},
            )
            for node in graph.nodes
        }  # fmt: skip


def match_origins(graph: Graph, earlier: Mapping[str, EarlierNode]) -> None:
    """After a pass: let nodes have the origins of those whose name they have, or whose place they have taken.

    A node takes the place of another one where it is read as that was: by a node that was there before, or, if the
    other one is gone, by what has itself taken the place of a node that called the same. A node that was there before
    stands for what is gone as well.

    Args:
        graph: what the pass made, or edited.
        earlier: the nodes of the graph before the pass.
    """
    became: dict[Node, str] = {}
    for node in graph.nodes:
        known = earlier.get(node.name)
        if known is None or (node._origins and not set(known.origins).issubset(node._origins)):
            continue
        if node._origins or node.op == known.op:
            became[node] = node.name
            if not node._origins:
                node.origins, node.source = known.origins, node.source or known.source
    kept = set(became.values())
    for user in reversed(graph.nodes):
        before = earlier.get(became.get(user, ""))
        if before is None or (user.name not in kept and (user.op, user.target) != (before.op, before.target)):
            continue
        for place, node in _inputs_by_place(user):
            name = before.inputs.get(place)
            if name is None or (name in kept and (user.name not in kept or became.get(node, name) != name)):
                continue
            if node not in became:
                became[node] = name
            _stand_for(node, earlier[name], is_new=node.name not in kept)


def _stand_for(node: Node, place: EarlierNode, is_new: bool) -> None:
    """Let ``node`` have the origins of what stood at its place before it, beside its own where that is gone."""
    if not node._origins:
        node.origins = place.origins
    elif not is_new:
        node.add_origins(place.origins)
    if node.source is None:
        node.source = place.source


def _inputs_by_place(node: Node) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """The nodes among the arguments of ``node``, each with its place."""
    pending: list[tuple[tuple[Any, ...], Any]] = [(("kwargs",), node.kwargs), (("args",), node.args)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, type(node)):
            yield place, value
        elif (kind := held_kind(value)) is not None:
            pending += [((*place, at), part) for at, part in zip(kind.labels(value), kind.parts(value), strict=True)]


def complete_origins(graph: Graph) -> None:
    """After a pass: let what it made for others share their origins, first those of its users, then of its inputs.

    The output says the least about where a value came from, so it is asked last. What is connected with nothing that
    has origins takes those of what stands before it.
    """
    for node in reversed(graph.nodes):
        if not node._origins or node.source is None:
            _take_missing(node, [user for user in node.users if user.op != "output"])
    for node in graph.nodes:
        if not node._origins or node.source is None:
            _take_missing(node, node.all_input_nodes)
    for nodes in (graph.nodes, reversed(graph.nodes)):
        before: list[Node] = []
        for node in nodes:
            if not node._origins or node.source is None:
                _take_missing(node, before)
            before = [node]


def _take_missing(node: Node, neighbours: Iterable[Node]) -> None:
    """From the first neighbour that has origins; a line too, unless ``node`` knows its own."""
    for neighbour in neighbours:
        if not node._origins:
            node.origins = neighbour.origins
        if node.source is None:
            node.source = neighbour.source
        if node._origins and node.source is not None:
            return
