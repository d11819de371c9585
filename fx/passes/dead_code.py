"""``remove-dead-code``: drop operations whose value nothing uses and whose effects nobody can see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fx.analysis.dependence import Dependences
from fx.graph_module import GraphModule, expect_program
from fx.node import Node
from fx.passes.contract import Contract, exact
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass, rewrites_inside
from fx.provenance import SourceLocation


@dataclass(frozen=True, slots=True)
class Kept:
    """An operation that nothing uses, and that stays."""

    node: str
    """Name of its node."""
    reason: str
    """What it does, and who would miss that."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""

    def __str__(self) -> str:
        return f"kept: {self.reason}"


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveDeadCode(RewritingPass):
    """Drop operations whose value nothing uses, unless they have an effect, as :mod:`fx.analysis.dependence` sees it.

    Writes to memory that nothing reads afterwards go too, if it is the program's own: not the caller's, not the
    module's, not part of what is returned. Checks, random numbers, running statistics and functions that are not known
    to be pure stay; ``explain`` says why; :func:`fx.operators.effects.declare_pure` lets a function be dropped.
    Programs that this one calls or fetches are cleaned as well.
    """

    name: ClassVar[str] = "remove-dead-code"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Drop them, last to first, those of called programs before others."""
        yield from rewrites_inside(self, graph_module, ("get_attr", "call_module"))
        dead, _ = _examine(graph_module)
        for node in dead:
            yield Edit(f"{node} dropped", node.source)
            graph_module.graph.erase_node(node)

    def explain(self, graph_module: GraphModule) -> list[Kept]:
        """Return why each operation stays that nothing uses. Nothing is changed, and called programs are not entered.

        >>> import fx
        >>> program = fx.symbolic_trace(lambda x: (x.add_(1), x * 2)[1])
        >>> [kept.reason.partition(",")[0] for kept in RemoveDeadCode().explain(program)]
        ['`%add_` writes to `%x`']
        """
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        return _examine(graph_module)[1][::-1]


def _examine(graph_module: GraphModule) -> tuple[list[Node], list[Kept]]:
    """Return what is dead, and what is not though nothing uses it, both last to first."""
    dependences = Dependences(graph_module.graph)
    dead: list[Node] = []
    kept: list[Kept] = []
    gone: set[Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if node.op in ("placeholder", "output") or not gone.issuperset(node.users):
            continue
        reason = dependences.why_not_drop(node)
        if reason is None:
            dependences.dropped(node)
            dead.append(node)
            gone.add(node)
        else:
            kept.append(Kept(node.name, reason, node.source))
    return dead, kept
