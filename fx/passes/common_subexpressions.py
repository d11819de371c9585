"""``eliminate-common-subexpressions``: compute each expression once, where it is repeated with the same arguments."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.analysis.dependence import Dependences
from fx.container_kinds import key_of
from fx.graph_module import GraphModule
from fx.node import Node
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, ExplainedPass, rewrites_inside

_PLAIN = (str, bytes, int, bool, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)


@register_pass
@dataclass(frozen=True, slots=True)
class EliminateCommonSubexpressions(ExplainedPass):
    """Replace repeated calls of the same function, method or module with the same arguments by the first of them.

    Arguments are the same if they are the same values of the program, or literals equal in type and bits. The operands
    of a sum are not reordered. Operations with an effect, random draws included, are left alone. So are operations
    whose operands are written to in between, or whose results are written to later. Two results that are both returned
    stay two tensors. ``explain`` gives the reasons. Each module is taken in its current mode.
    Bodies that the program passes to operators are searched separately.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Merge repetitions in the order of the program, those in bodies first."""
        yield from rewrites_inside(self, graph_module)
        for node, first, reason in _repetitions(graph_module):
            if reason is None:
                yield Edit(f"{node} into {first}", node.source)
                node.replace_all_uses_with(first)
                graph_module.graph.erase_node(node)

    def decisions(self, graph_module: GraphModule) -> Iterator[tuple[Node, bool, str]]:
        """Yield each repeated call, whether it is merged with the first, and why."""
        for node, first, reason in _repetitions(graph_module):
            yield node, reason is None, reason or f"`%{first}` takes the place of `%{node}`"


def _repetitions(graph_module: GraphModule) -> list[tuple[Node, Node, str | None]]:
    """List each call that repeats an earlier one, with the earlier call and the reason not to merge them, if any."""
    dependences = Dependences(graph_module.graph)
    latest: dict[Hashable, Node] = {}
    replacements: dict[Node, Node] = {}
    repetitions: list[tuple[Node, Node, str | None]] = []
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        key = _key(node, replacements)
        first = latest.setdefault(key, node)
        if first is node:
            continue
        reason = dependences.why_not_merge(first, node)
        repetitions.append((node, first, reason))
        if reason is None:
            replacements[node] = first
            dependences.merged(first, node)
        else:
            latest[key] = node  # later calls are more likely to merge with this one
    return repetitions


def _key(node: Node, replacements: dict[Node, Node]) -> Hashable:
    """Return a key that is equal for calls of the same target with the same arguments."""
    target: Any = node.target if isinstance(node.target, str) else id(node.target)

    def leaf(value: Any) -> Hashable:
        kind: Any = type(value)
        if kind is Node:
            return replacements.get(value, value)
        if kind in _PLAIN:
            return kind, value
        if kind is float:
            return kind, struct.pack("d", value)
        return (kind, struct.pack("dd", value.real, value.imag)) if kind is complex else (kind, id(value))

    return node.op, target, key_of(node.args, leaf), key_of(node.kwargs, leaf)
