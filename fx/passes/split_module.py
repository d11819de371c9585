"""``split``, ``split_module`` and ``split_by_nodes``: divide a program into submodules (paper, section 6.2.3)."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.argument_types import checked
from fx.errors import PassError, add_note
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import prefixes
from fx.node import Node
from fx.passes.machinery.regions import Region, Regions, Spelling
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass

_NOT_DIVIDED = ("placeholder", "get_attr", "output")


@checked(PassError)
def split_module(
    m: GraphModule,
    root_m: torch.nn.Module | None,
    split_callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """Divide a program into partitions, each a submodule ``submod_N``; a callback assigns each operation to one.

    The outer program only calls the submodules and passes values from one to the next. Parameters and modules are
    shared with ``m``, which stays as it is, and keep their paths inside the submodule that uses them. A parameter that
    several partitions fetch stays outside and is passed to them. Writes, checks and random draws keep their order
    relative to the operations that they could affect.

    Args:
        m: the program.
        root_m: not used; exists for compatibility with ``torch.fx``.
        split_callback: returns the partition of an operation, a number or any value with a distinct ``str``.
            It is called once for each node except inputs, attributes and the output, in order.
        qualname_map: filled with the path of each module and attribute in the submodules, and its path in ``m``.
        keep_original_order: partitions run in the order of their first operations as far as possible; otherwise, as
            in ``torch.fx``, the one whose inputs were ready last goes first.
        keep_original_node_name: nodes keep their names; otherwise they get new names in each submodule.
        keep_original_input_name: inputs of submodules have the names of the values passed to them; otherwise
            ``arg_0``, ….
        partition_affix: names the submodules ``submod_<affix>_N``.
        tuple_return: a submodule with a single result also returns a tuple.

    Raises:
        PassError: partitions need each other's values, or a write of one and a read of the other would be reordered;
            the message names the nodes. Or a submodule's name is taken or invalid.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
    >>> halves = split_module(program, None, lambda node: 0 if node.target == "0" else 1)
    >>> print(halves.code.strip())
    def forward(self, input):
        input_1 = input
        submod_0 = self.submod_0(input_1);  input_1 = None
        submod_1 = self.submod_1(submod_0);  submod_0 = None
        return submod_1
    """
    prefix = "submod_" if partition_affix is None else f"submod_{partition_affix}_"
    regions = Regions(m, _ask(m, split_callback, prefix))
    order = regions.in_program_order(0) if keep_original_order else regions.last_come_first_served()
    spelling = Spelling(bool(keep_original_node_name), keep_original_input_name, tuple_return)
    program = regions.build(order, spelling)
    if qualname_map is not None:
        for region in regions.regions:
            paths = (str(node.target) for node in region.nodes if node.op in ("call_module", "get_attr"))
            qualname_map.update((f"{region.name}.{path}", path) for path in paths)
    return program


def _ask(m: GraphModule, split_callback: Callable[[Node], Any], prefix: str) -> dict[Node, Region]:
    """Return the region of each node, by the answers of ``split_callback``."""
    regions: dict[str, Region] = {}
    home: dict[Node, Region] = {}
    for node in m.graph.nodes:
        if node.op in _NOT_DIVIDED:
            continue
        try:
            name = f"{prefix}{split_callback(node)}"
        except Exception as error:
            add_note(error, f"while split_callback was called on {node.format_node()}")
            raise
        if name not in regions:
            if "." in name:
                raise PassError(
                    f"a submodule cannot be called {name!r}",
                    where=node.source,
                    value=node.format_node(),
                    why="dots separate the names of modules in a path",
                    remedy="let split_callback return numbers",
                )
            regions[name] = Region(name)
        home[node] = regions[name]
    return home


@checked(PassError)
def split_by_nodes(graph_module: GraphModule, sets: Iterable[Iterable[Node]]) -> GraphModule:
    """Make each of several sets of nodes one submodule, and leave everything else where it is.

    The submodules are called ``submod_0``, ``submod_1``, … in the order of ``sets``, or by the next free name. Each
    runs at the place of its last node, or earlier if another node needs it. Nodes keep their names, metadata, lines and
    origins. A submodule returns the values that are used outside: a single value directly, others as a tuple, which may
    be empty. A ``get_attr`` node that only one of the sets uses becomes part of it. Tensors and modules are shared with
    ``graph_module``, which stays as it is.

    Args:
        graph_module: the program.
        sets: sets of its nodes, without inputs and the output; empty ones make no submodule.

    Returns:
        The new program; ``meta["partition_names"]`` holds the names of the submodules.

    Raises:
        PassError: a node is in two sets, of another graph, an input or the output. Or a set cannot run as a whole: a
            path leaves it and comes back, or a write and a read would be reordered. The message names the nodes.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x).neg().exp())
    >>> x, relu, neg, exp, output = program.graph.nodes
    >>> print(split_by_nodes(program, [{relu, neg}]).code.strip())
    def forward(self, x):
        submod_0 = self.submod_0(x);  x = None
        exp = submod_0.exp();  submod_0 = None
        return exp
    """
    home: dict[Node, Region] = {}
    names = _free_names(graph_module)
    for nodes in sets:
        region = Region(next(names))
        for node in nodes:
            _check_member(graph_module.graph, node, home.get(node), region)
            home[node] = region
    regions = Regions(graph_module, home)
    return regions.build(regions.in_program_order(-1), Spelling())


def _free_names(graph_module: GraphModule) -> Iterator[str]:
    """Return an iterator over names for submodules that the program does not use."""
    used = {str(node.target).partition(".")[0] for node in graph_module.graph.nodes if isinstance(node.target, str)}
    return (name for name in map("submod_{}".format, itertools.count()) if name not in used)


def _check_member(graph: Graph, node: Node, other: Region | None, region: Region) -> None:
    problem = None
    if node.graph is not graph or node._erased:
        problem = "is not in the program's graph"
    elif node.op in ("placeholder", "output"):
        problem = "is an input or the output of the program, which stay outside"
    elif other is region:
        problem = "is twice in one set"
    elif other is not None:
        problem = f"is in two sets, those of {other.name} and {region.name}"
    if problem is not None:
        raise PassError(f"`%{node}` {problem}", where=node.source, value=node.format_node())


@register_pass
@dataclass(frozen=True, slots=True)
class Split:
    """Cut the program before the first operation of each of the named modules, into ``submod_0``, ``submod_1``, ….

    ``Split(at=("layer3",))``, or ``split{at=layer3}`` as text, makes a ResNet's stem and first two stages one
    submodule and the rest another. The result is a new program, which shares tensors and modules with the original;
    without a place to cut, the original is returned.
    """

    at: tuple[str, ...] | str = ()
    """Paths of modules of the traced model, or names of nodes; a single one may be a string."""

    name: ClassVar[str] = "split"
    contract: ClassVar[Contract] = exact

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", (self.at,) if isinstance(self.at, str) else tuple(self.at))

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, Any]]:
        """Yield the places where ``graph_module`` can be cut, each alone and with the next; tests choose among them."""
        nodes = [node for node in graph_module.graph.nodes if node.op not in _NOT_DIVIDED]
        places = list(dict.fromkeys(place for node in nodes for place in _places(node)))
        yield from ({"at": tuple(places[start : start + count])} for start in range(len(places)) for count in (1, 2))

    @checked(PassError)
    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Return the program divided at the places.

        Raises:
            PassError: no operation comes from one of the places; the message lists the nearest names.
        """
        if not self.at:
            return graph_module
        wanted = set(self.at)
        part: dict[Node, int] = {}
        count = 0
        for node in graph_module.graph.nodes:
            if node.op in _NOT_DIVIDED:
                continue
            if wanted and (matches := wanted.intersection(_places(node))):
                wanted -= matches
                count += bool(part)
            part[node] = count
        if wanted:
            raise _no_such_place(graph_module, min(wanted))
        return split_module(graph_module, None, part.__getitem__, None, True, True)


def _places(node: Node) -> Iterator[str]:
    """Yield the places that ``node`` belongs to: its own name, and the paths of the modules that it comes from."""
    yield node.name
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {}) if node._meta else {}
    paths = [path for path, _ in stack.values()]
    if node.op == "call_module":
        paths.append(str(node.target))
    for path in paths:
        yield from prefixes(path)


def _no_such_place(graph_module: GraphModule, place: str) -> PassError:
    places = {name: None for node in graph_module.graph.nodes if node.op not in _NOT_DIVIDED for name in _places(node)}
    nearest = difflib.get_close_matches(place, places, n=3, cutoff=0.5)
    return PassError(
        f"cannot split at {place!r}: no operation comes from a module of that path or has that name",
        value=None if nearest else f"modules and nodes: {', '.join(list(places)[:20])}",
        remedy=f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else None,
    )
