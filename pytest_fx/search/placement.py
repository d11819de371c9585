"""The effect of torch.fx's ``replace_pattern`` on the order of a program, which passes that use it are excused for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fx import Graph, GraphModule, Node, map_arg
from fx.passes import Contract, Pass, contract_of, pass_name
from pytest_fx.harness.pass_run import may_change


class PutBack:
    """A pass that afterwards moves its added nodes to the places of the nodes that it removed.

    ``torch.fx.replace_pattern`` puts a replacement before the first user of the result. If something is written in
    place between the two places, the replacement reads other values than the pattern, for every caller.
    """

    name: str
    """The name of the pass."""
    contract: Contract
    """The contract of the pass."""
    may_change: tuple[str, ...]
    """The properties that the pass may change."""

    def __init__(self, pass_: Pass) -> None:
        self._pass = pass_
        self.name, self.contract, self.may_change = pass_name(pass_), contract_of(pass_), tuple(may_change(pass_))

    def __call__(self, graph_module: GraphModule) -> Any:
        """Apply the pass, and move its nodes back."""
        before = {node.name: _reads(node) for node in graph_module.graph.nodes}
        result: Any = self._pass(graph_module)
        after = graph_module if result is None else result
        if isinstance(after, GraphModule):
            put_back(after.graph, before)
            after.recompile()
        return after


def put_back(graph: Graph, before: Mapping[str, Sequence[str]]) -> None:
    """Move each new node to the place of the node that its users read before, together with the new nodes it needs.

    Args:
        graph: the present program.
        before: the names of the nodes that it had, in order, each with the names of its inputs.
    """
    last: dict[str, str] = {}
    remaining = {node.name: node for node in graph.nodes if node.name in before}
    anchor = ""
    for name in before:  # for each node the last one up to it that still exists
        anchor = name if name in remaining else anchor
        last[name] = anchor
    tails = dict(remaining)  # the places after which the next nodes go
    added: list[Node] = []
    for node in list(graph.nodes):
        if node.name in before:
            continue
        added.append(node)
        replaced = next(_replaced_by(node, before), None)
        if replaced is None or not last[replaced]:
            continue
        needed = {node}
        for part in reversed(added):
            needed |= {*part.all_input_nodes} if part in needed else set()
        for part in [part for part in added if part in needed]:
            tails[last[replaced]].append(part)
            tails[last[replaced]] = part
            added.remove(part)


def _replaced_by(node: Node, before: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the names that users of a node read in its place before."""
    for user in node.users:
        reads, now = before.get(user.name, ()), _reads(user)
        if len(reads) == len(now):
            yield from (name for name, read in zip(reads, now, strict=True) if read == node.name)


def _reads(node: Node) -> list[str]:
    names: list[str] = []

    def note(read: Node) -> Node:
        names.append(read.name)
        return read

    map_arg((node.args, node.kwargs), note)
    return names
