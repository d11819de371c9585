"""``remove-checks``: drop the checks that capture recorded, and what was computed for them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.effects import is_impure
from fx.graph_module import GraphModule
from fx.node import Node
from fx.passes.contract import Contract, exact
from fx.passes.registry import register_pass


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveChecks:
    """Drop recorded checks (``torch._assert``) and the operations whose values only they used.

    For inputs that pass the checks the program stays the same; others are no longer refused. Dead code that was there
    before stays, and so does whatever has an effect of its own. ResNet50 captured without leaf modules has 444
    operations after this (paper, section 6.1).
    """

    name: ClassVar[str] = "remove-checks"
    contract: ClassVar[Contract] = exact

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Edit ``graph_module`` and return it."""
        graph = graph_module.graph
        revision = graph.revision
        loosened: set[Node] = set()  # nodes that lost a user here
        for node in reversed(graph.nodes):
            if node.users:
                continue
            if _is_check(node) or (node in loosened and not is_impure(node)):
                loosened.update(node.all_input_nodes)
                graph.erase_node(node)
        if graph.revision != revision:
            graph_module.recompile()
        return graph_module


def _is_check(node: Node) -> bool:
    check: Any = vars(torch)["_assert"]
    return node.op == "call_function" and node.target is check
