"""``remove-dead-code``: drop operations whose value nothing uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fx.graph_module import GraphModule
from fx.passes.contract import Contract, exact
from fx.passes.registry import register_pass


@register_pass
@dataclass(frozen=True, slots=True)
class RemoveDeadCode:
    """Drop operations whose value nothing uses and that have no effect, as :mod:`fx.effects` sees it.

    In-place operations, checks, random numbers, running statistics and functions that are not known to be pure stay;
    :func:`fx.effects.why_impure` says why, and :func:`fx.effects.declare_pure` is the way to have a function dropped.
    """

    name: ClassVar[str] = "remove-dead-code"
    contract: ClassVar[Contract] = exact

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Edit ``graph_module`` and return it."""
        if graph_module.graph.eliminate_dead_code():
            graph_module.recompile()
        return graph_module
