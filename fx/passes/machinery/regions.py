"""Regions: sets of a program's nodes that become submodules, and the outer program that calls them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fx.analysis.accesses import CHECKS, COMPUTES, DRAWS, SETS_MODES, UNKNOWN, Accesses, keeps_order_with
from fx.analysis.aliases import Aliases
from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.containers import Container
from fx.node import KEYWORD_ONLY, Node, map_arg

_DESCRIBING_THE_VALUE = ("example_value", "tensor_meta", "type", "val")
"""Entries of ``meta`` that describe the value, so that they are valid for any node that returns it."""

_SHOWN = 6
"""Largest number of steps of a cycle in an error message."""

_LIKE_MEMORY = (DRAWS, CHECKS, UNKNOWN, SETS_MODES)
"""Effects that order operations like a write to one piece of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that become one submodule."""

    name: str
    """The attribute that the submodule becomes; without dots."""
    nodes: list[Node] = field(default_factory=list[Node])
    """Its nodes, in the order of the program."""
    inputs: dict[Node, None] = field(default_factory=dict[Node, None])
    """The values from outside that its nodes use, in order of first use."""
    outputs: dict[Node, None] = field(default_factory=dict[Node, None])
    """Its values that are used outside, in order of first use."""


Item: TypeAlias = "Region | Node"
"""One step of the outer program: a region, or a node outside all regions."""


class _Link(NamedTuple):
    """A reason why one item has to run after another."""

    earlier: Node
    later: Node
    uses: bool
    """True if ``later`` uses the value of ``earlier``; False if an effect of one of them orders the two."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The naming of nodes and inputs in submodules, and the form of their results."""

    keep_node_names: bool = True
    """Nodes keep their names; otherwise they are named for what they call."""
    keep_input_names: bool = True
    """Inputs have the names of the values passed to them; otherwise ``arg_0``, ``arg_1``, …"""
    always_tuple: bool = False
    """A submodule with a single result returns it in a tuple as well."""


class Regions:
    """A program divided into regions, with the dependences between them.

    A ``get_attr`` node that only one region uses becomes part of that region. Values that several regions, or a region
    and the outer program, share are passed between them.
    """

    def __init__(self, graph_module: GraphModule, home: dict[Node, Region]) -> None:
        """Divide a program; linear in the number of its nodes and arguments.

        Args:
            graph_module: the program, which is only read.
            home: the region of each node inside one. This fills the lists of the regions.
        """
        self._graph_module = graph_module
        self._graph = graph_module.graph
        self._home = home
        self._needs: dict[Item, dict[Item, _Link]] = {}
        self.regions: dict[Region, None] = {}
        """The regions, in the order of their first nodes."""
        self._take_attributes()
        for node in self._graph.nodes:
            self._visit(node)
        for earlier, later in find_constraints(self._graph):
            self._link(_Link(earlier, later, False))

    def _take_attributes(self) -> None:
        home = self._home
        # A parameter fetched outside would be an argument of each call of the submodule that alone uses it, and not be
        # one of its parameters.
        for node in self._graph.find_nodes(op="get_attr"):
            if node not in home and node.users:
                first, *others = {home.get(user) for user in node.users}
                if first is not None and not others:
                    home[node] = first

    def _visit(self, node: Node) -> None:
        home = self._home
        region = home.get(node)
        if region is not None:
            self.regions[region] = None
            region.nodes.append(node)
        for used in node.all_input_nodes:
            source = home.get(used)
            if source is not region or source is None:
                if region is not None:
                    region.inputs[used] = None
                if source is not None:
                    source.outputs[used] = None
                self._link(_Link(used, node, True))

    def _link(self, link: _Link) -> None:
        earlier, later = self._item(link.earlier), self._item(link.later)
        if earlier is not later:
            self._needs.setdefault(later, {}).setdefault(earlier, link)

    def _item(self, node: Node) -> Item:
        return self._home.get(node, node)

    def names_outside(self) -> dict[str, Node]:
        """Return the top-level attributes that nodes outside of regions use or look into, each with such a node."""
        outside = (node for node in self._graph.nodes if node not in self._home)
        return {str(node.target).partition(".")[0]: node for node in outside if node.op in ("get_attr", "call_module")}

    # The order of the items.

    def in_program_order(self, place: int) -> list[Item]:
        """Return all items, inputs first, each at its place in the program as far as its dependences allow.

        Args:
            place: index of the node of a region that determines the region's place: 0 for its first, -1 for its last.

        Raises:
            PassError: there is no such order; the message names the nodes of a cycle.
        """
        done: dict[Item, None] = dict.fromkeys(self._graph.find_nodes(op="placeholder"))
        for node in self._graph.nodes:
            item = self._item(node)
            if item not in done and (isinstance(item, Node) or item.nodes[place] is node):
                self._append(item, done)
        return list(done)

    def _append(self, item: Item, done: dict[Item, None]) -> None:
        """Append ``item`` to ``done``, after the missing items among its dependences."""
        open_items: dict[Item, Iterator[Item]] = {item: self._missing(item, done)}
        while open_items:
            current, missing = next(reversed(open_items.items()))
            needed = next(missing, None)
            if needed is None:
                del open_items[current]
                done[current] = None
            elif needed in open_items:
                path = list(open_items)
                raise self._cycle_error(path[path.index(needed) :])
            elif needed not in done:
                open_items[needed] = self._missing(needed, done)

    def _missing(self, item: Item, done: dict[Item, None]) -> Iterator[Item]:
        needed = [other for other in self._needs.get(item, ()) if other not in done]
        return iter(sorted(needed, key=lambda other: other.nodes[0] if isinstance(other, Region) else other))

    def last_come_first_served(self) -> list[Item]:
        """Return the nodes outside, then the regions, always the one that became ready last, as in ``torch.fx``.

        No caller needs this order in particular. ``split_module`` uses it by default, so that users of ``torch.fx`` get
        the same program here.

        The regions must contain all nodes except inputs, attributes and the output.

        Raises:
            PassError: there is no such order; the message names the nodes of a cycle.
        """
        waiting = {
            region: {item for item in self._needs.get(region, ()) if isinstance(item, Region)}
            for region in self.regions
        }
        followers: dict[Region, dict[Region, None]] = {region: {} for region in self.regions}
        for node in self._graph.nodes:
            follower = self._home.get(node)
            if follower is not None:
                for used in node.all_input_nodes:
                    if (region := self._home.get(used)) is not None and region is not follower:
                        followers[region][follower] = None
        for follower, needed in waiting.items():
            for region in needed:
                followers[region].setdefault(follower)
        ready = [region for region, needed in waiting.items() if not needed]
        chosen: list[Item] = []
        while ready:
            chosen.append(region := ready.pop())
            for follower in followers[region]:
                waiting[follower].discard(region)
                if not waiting[follower]:
                    ready.append(follower)
        if len(chosen) < len(self.regions):
            self.in_program_order(0)  # raises, with the cycle
        outside = [node for node in self._graph.nodes if node not in self._home]
        results = [node for node in outside if node.op == "output"]
        return [*(node for node in outside if node.op != "output"), *chosen, *results]

    def _cycle_error(self, path: Sequence[Item]) -> PassError:
        """Make the error for a cycle: each item of ``path`` needs the next one, and the last one needs the first."""
        links = [self._needs[item][needed] for item, needed in zip(path, [*path[1:], path[0]], strict=True)]
        links.reverse()
        start = links.index(min((link for link in links if link.earlier in self._home), key=lambda link: link.earlier))
        links = [*links[start:], *links[:start]]
        regions = [item.name for item in path if isinstance(item, Region)]
        steps = [f"{self._place(link.earlier)} -> {self._place(link.later)}" for link in links[:_SHOWN]]
        if len(links) > _SHOWN:
            steps.append(f"… and {len(links) - _SHOWN} more")
        what = f"cycle exists between partitions! {', '.join(sorted(regions))} need each other"
        if len(regions) == 1:
            what = f"{regions[0]} cannot be one submodule: a path leaves it and comes back"
        dependences = Dependences(self._graph)
        obstacles = (dependences.why_not_swap(link.earlier, link.later) for link in links if not link.uses)
        reasons = dict.fromkeys(reason for reason in obstacles if reason is not None)
        return PassError(
            what,
            where=next((link.later.source for link in reversed(links) if link.later.source is not None), None),
            value="; ".join(steps),
            why="; ".join(["a submodule runs as a whole", *reasons]),
            remedy="put these nodes into one submodule, or divide those that they are in",
        )

    def _place(self, node: Node) -> str:
        region = self._home.get(node)
        return f"%{node}" if region is None else f"%{node} ({region.name})"

    # The new program.

    def build(self, order: Sequence[Item], spelling: Spelling) -> GraphModule:
        """Return a new program that runs the items in ``order``; it shares tensors and modules with the original.

        Raises:
            PassError: a region has the name of an attribute that the outer program uses.
        """
        outside = self.names_outside()
        for region in self.regions:
            if (node := outside.get(region.name)) is not None:
                raise PassError(
                    f"a submodule cannot be called {region.name!r}: the program has an attribute of that name",
                    where=node.source,
                    value=node.format_node(),
                    remedy="give submodules another name: partition_affix of split_module, prefix of fuse_partitions",
                )
        submodules = {region.name: self._submodule(region, spelling) for region in self.regions}
        outer = blank_like(self._graph)
        outer.set_codegen(copy.deepcopy(self._graph._codegen))
        values: dict[Node, Node] = {}
        for item in order:
            if isinstance(item, Region):
                _call(outer, item, values, spelling)
            else:
                copy_node(outer, item, values, spelling.keep_node_names or item.op == "placeholder")
        take_constants(self._graph, outer)
        state: dict[str, Any] = self._graph_module.plain_state()
        root = Container()
        root.__dict__.update({**state, "_modules": {**state["_modules"], **submodules}})
        program = GraphModule.of_capture(root, outer, self._graph_module._get_name())
        program.meta = {**self._graph_module.meta, "partition_names": set(submodules)}
        return program

    def _submodule(self, region: Region, spelling: Spelling) -> GraphModule:
        graph = blank_like(self._graph)
        values: dict[Node, Node] = {}
        for number, used in enumerate(region.inputs):
            values[used] = graph.placeholder(used.name if spelling.keep_input_names else f"arg_{number}", used.type)
            copy_notes(used, values[used])
            values[used].meta.pop(KEYWORD_ONLY, None)  # the submodule is called with positional arguments
        for node in region.nodes:
            copy_node(graph, node, values, spelling.keep_node_names)
        results = tuple(values[node] for node in region.outputs)
        graph.output(results if len(results) != 1 or spelling.always_tuple else results[0])
        take_constants(self._graph, graph)
        return GraphModule.of_capture(self._graph_module, graph, "GraphModule")


def find_constraints(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of operations of which the first has to run before the second, in linear time.

    Any order of the operations that respects these pairs, and computes values before their uses, gives the results of
    the program. Only direct pairs are listed: a write after the reads since the previous write, and a read after the
    last write. The rules of :mod:`fx.analysis.dependence` on random numbers, checks, unknown calls and modes are
    expressed in the same way.
    """
    aliases = Aliases(graph)
    accesses = Accesses(aliases)
    if all(bits <= COMPUTES for bits in accesses.bits):
        return
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    nodes = aliases.nodes
    for index, bits in enumerate(accesses.bits):
        if not bits:
            continue
        order = keeps_order_with(bits)
        written = {*accesses.writes(index), *(-bit for bit in _LIKE_MEMORY if bits & bit)}
        for memory in written.union(accesses.reads(index), (-bit for bit in _LIKE_MEMORY if order & bit)):
            if memory in writers:
                yield nodes[writers[memory]], nodes[index]
            if memory in written:
                for reader in readers.pop(memory, ()):
                    yield nodes[reader], nodes[index]
                writers[memory] = index
            else:
                readers.setdefault(memory, []).append(index)


def blank_like(graph: Graph) -> Graph:
    """Return an empty graph with the tracer and the history of ``graph``."""
    blank = Graph(tracer_cls=graph._tracer_cls, tracer_extras=graph._tracer_extras)
    blank.history = graph.history
    return blank


def copy_node(graph: Graph, node: Node, values: dict[Node, Node], keep_name: bool) -> None:
    """Copy ``node`` to the end of ``graph``, with its operands mapped by ``values``, and add the copy to ``values``."""
    args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
    values[node] = graph.create_node(node.op, node.target, args, kwargs, node.name if keep_name else None, node.type)
    copy_notes(node, values[node])


def copy_notes(node: Node, copied: Node) -> None:
    """Give ``copied`` the notes, the place in the source and the origins of ``node``."""
    if node._meta:
        copied.meta = dict(node._meta)
    copied.source = node.source
    copied.origins = node.origins or (node.name,)


def _call(graph: Graph, region: Region, values: dict[Node, Node], spelling: Spelling) -> None:
    """Call the submodule of ``region`` at the end of ``graph``, and unpack its results into ``values``."""
    call = graph.call_module(region.name, tuple(values[used] for used in region.inputs))
    call.source = next((node.source for node in region.nodes if node.source is not None), None)
    call.origins = tuple(dict.fromkeys(origin for node in region.nodes for origin in node.origins or (node.name,)))
    whole = len(region.outputs) == 1 and not spelling.always_tuple
    for number, node in enumerate(region.outputs):
        value = values[node] = call if whole else graph.call_function(operator.getitem, (call, number))
        if not whole:
            value.source, value.origins = node.source, node.origins or (node.name,)
        if node._meta:
            value.meta.update((key, node._meta[key]) for key in _DESCRIBING_THE_VALUE if key in node._meta)


def take_constants(graph: Graph, other: Graph) -> None:
    """Give ``other`` the constants of ``graph`` that it uses."""
    if graph.constants:
        targets = (str(node.target) for node in other.find_nodes(op="get_attr"))
        other.constants = {name: graph.constants[name] for name in targets if name in graph.constants}
