"""The programs before and after a pass in another form, as programs of ours, so that they can be compared and cut."""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx

from fx import GraphModule, Node
from fx.errors import InteropError
from fx.interop import from_export, from_torch
from fx.naming.printing import describe
from pytest_fx.failures.node_error import NodeError
from pytest_fx.failures.pairing import complete
from pytest_fx.forms import FormedPass
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject

MOST_SHOWN = 4
"""The most nodes of a change that are shown on either side."""


def formed_programs(pass_run: PassRun, *, float64: bool = False) -> tuple[GraphModule, GraphModule] | None:
    """Return the program that the pass got, and its result, as programs of ours in operators of ATen.

    None if one of them has no graph, or cannot be converted. Nodes of the result have those of the other as origins.
    """
    untouched = pass_run.with_nothing_changed()
    programs = [run.after_float64 if float64 else run.program for run in (untouched, pass_run)]
    try:
        before, after = (from_torch(program) for program in programs if isinstance(program, torch.fx.GraphModule))
    except (InteropError, ValueError):
        return None
    complete(after, before)
    return before, after


def program_to_cut(subject: Subject, pass_: object) -> GraphModule | None:
    """Return the exported model in functions and methods of torch; None if the pass gets no exported program."""
    if not isinstance(pass_, FormedPass) or not pass_.form.is_exported:
        return None
    return from_export(subject.export_source().exported("exported"))


def change_around(before: GraphModule, after: GraphModule, wrong: NodeError) -> list[str]:
    """Return lines with the nodes that the pass replaced around the first wrong node, and those in their place."""
    printed = {describe(node) for node in before.graph.nodes}
    still = {describe(node) for node in after.graph.nodes}
    gone = {node for node in before.graph.nodes if describe(node) not in still}
    new = {node for node in after.graph.nodes if describe(node) not in printed}
    partner = [node for node in before.graph.nodes if node.name == wrong.original]
    node = [node for node in after.graph.nodes if describe(node) == wrong.node]
    replaced, instead = _connected(partner, gone), _connected(node, new)
    if not instead and not replaced:
        return []
    return ["the change there:", *_shown("before", replaced), *_shown("after", instead)]


def _connected(nodes: list[Node], among: set[Node]) -> list[Node]:
    """Return the changed nodes among ``nodes`` and their inputs, and the inputs of these, in the order of the graph."""
    pending, connected = list(nodes), set[Node]()
    while pending:
        node = pending.pop()
        if node in among and node not in connected:
            connected.add(node)
            pending += node.all_input_nodes
    return [node for node in (nodes[0].graph.nodes if nodes else ()) if node in connected]


def _shown(when: str, nodes: list[Node]) -> Iterator[str]:
    for number, node in enumerate(nodes[-MOST_SHOWN:]):
        yield f"  {when if not number else '':<6} {describe(node)}"
