"""``remove-dead-code``: drop operations whose value is unused and whose effects are not observable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fx.analysis.dependence import Dependences
from fx.graph_module import GraphModule
from fx.node import Node
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass, rewrites_inside


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveDeadCode(ExplainedPass):
    """Drop operations whose value is unused, unless :mod:`fx.analysis.dependence` finds an effect.

    Writes to memory that nothing reads afterwards are dropped too, if the program owns the memory: it is not the
    caller's, not the module's, and not part of the result. Checks, random draws, updates of running statistics and
    functions that are not known to be pure stay. ``explain`` gives the reasons, and
    :func:`fx.operators.effects.declare_pure` allows a function to be dropped. Programs that this one calls or fetches
    are cleaned as well.
    """

    name: ClassVar[str] = "remove-dead-code"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Drop dead operations from last to first, those of called programs first."""
        yield from rewrites_inside(self, graph_module, ("get_attr", "call_module"))
        dead, _ = _examine(graph_module)
        for node in dead:
            yield Edit(f"{node} dropped", node.source)
            graph_module.graph.erase_node(node)

    def decisions(self, graph_module: GraphModule) -> Iterator[tuple[Node, bool, str]]:
        """Yield the unused operations that stay, in the order of the program; called programs are not searched.

        >>> import fx
        >>> program = fx.symbolic_trace(lambda x: (x.add_(1), x * 2)[1])
        >>> [operation.reason.partition(",")[0] for operation in RemoveDeadCode().explain(program)]
        ['`%add_` writes to `%x`']
        """
        for node, reason in reversed(_examine(graph_module)[1]):
            yield node, False, reason


def _examine(graph_module: GraphModule) -> tuple[list[Node], list[tuple[Node, str]]]:
    """Return the dead operations, and the unused ones that stay, both from last to first."""
    dependences = Dependences(graph_module.graph)
    dead: list[Node] = []
    staying: list[tuple[Node, str]] = []
    erased: set[Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if node.op in ("placeholder", "output") or not erased.issuperset(node.users):
            continue
        reason = dependences.why_not_drop(node)
        if reason is None:
            dependences.dropped(node)
            dead.append(node)
            erased.add(node)
        else:
            staying.append((node, reason))
    return dead, staying
