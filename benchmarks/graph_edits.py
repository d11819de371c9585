"""Speed of graph operations: dead code, lint, replacing, erasing, finding, copying, by operation of a chain."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch

from .paired import LIBRARIES, Table, each, each_afresh, parse, sizes
from .programs import chain_graph


def replace_half(graph: Any) -> None:
    """Replace every second node by a new one."""
    for node in graph.find_nodes(op="call_function", target=torch.relu):
        with graph.inserting_after(node):
            replacement = graph.call_function(torch.sigmoid, node.args)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)


def find_after_edits(graph: Any) -> None:
    """Find the nodes of one kind after each edit, with as many edits as there are nodes."""
    first = next(iter(graph.nodes))
    for _ in range(len(graph.nodes)):
        with graph.inserting_after(first):
            added = graph.call_function(torch.sigmoid, (first,))
        assert graph.find_nodes(op="call_function", target=torch.sigmoid) == [added]
        graph.erase_node(added)


def eliminate(graph: Any) -> None:
    """Remove the dead half of the nodes."""
    assert graph.eliminate_dead_code()


def edit_chains(table: Table, lengths: list[int], rounds: int) -> None:
    """Measure five operations on chains of increasing length; a flat column means a linear operation."""
    for size in lengths:
        fresh = {label: partial(chain_graph, library, size) for label, library in LIBRARIES.items()}
        half_dead = {label: partial(chain_graph, library, size, dead=True) for label, library in LIBRARIES.items()}
        graphs = {label: make() for label, make in fresh.items()}
        rows = (
            ("dead-code elimination", size, each_afresh(eliminate, half_dead)),
            ("lint", size, each(lambda graph: graph.lint(), graphs)),
            ("replace and erase", size // 2, each_afresh(replace_half, fresh)),
            ("find_nodes after an edit", size, each(find_after_edits, graphs)),
            ("deepcopy of the graph", size, each(copy.deepcopy, graphs)),
        )
        for name, operations, contenders in rows:
            table.measure_operations(name, operations, contenders, rounds=rounds, goal="at most 1, flat")


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    edit_chains(Table(*LIBRARIES), sizes(options), options.rounds)


if __name__ == "__main__":
    main()
