"""``remove-checks``: drop the checks that capture recorded, and the operations that only they used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fx.assertions import CHECKS, GUARDS
from fx.graph_module import GraphModule
from fx.node import Node
from fx.operators.effects import is_impure
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, RewritingPass, rewrites_inside


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveChecks(RewritingPass):
    """Drop recorded checks (``torch._assert``, ``fx.assertions.check``) and the operations whose values only they used.

    For inputs that pass the checks the program stays the same; other inputs are no longer refused. Operations with
    effects stay, and so does earlier dead code. ResNet50 captured without leaf modules has 444 operations after this
    (paper, section 6.1).

    Checks in bodies that the program passes to operators are dropped as well. Guards stay: they refuse inputs for which
    the program was not captured (``GraphModule.guards``).
    """

    guards: bool = False
    """Also drop the guards: for inputs that break one, the program then computes something else than the model."""

    name: ClassVar[str] = "remove-checks"
    contract: ClassVar[Contract] = exact
    may_change: ClassVar[tuple[str, ...]] = ("checks",)

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Drop the checks from last to first, those in bodies first."""
        yield from rewrites_inside(self, graph_module)
        graph = graph_module.graph
        loosened: set[Node] = set()  # nodes that lost a user during this pass
        for node in reversed(graph.nodes):
            if node.users:
                continue
            if _is_check(node, self.guards) or (node in loosened and not is_impure(node)):
                yield Edit(f"{node} dropped", node.source)
                loosened.update(node.all_input_nodes)
                graph.erase_node(node)


def _is_check(node: Node, guards: bool) -> bool:
    return node.op == "call_function" and (node.target in CHECKS or (guards and node.target in GUARDS))
