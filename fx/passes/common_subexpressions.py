"""``eliminate-common-subexpressions``: compute once what is computed several times from the same arguments."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.analysis.dependence import Dependences
from fx.container_kinds import key_of
from fx.graph_module import GraphModule, expect_program
from fx.node import Node
from fx.passes.contract import Contract, exact
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.provenance import SourceLocation

_PLAIN = (str, bytes, int, bool, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)


@dataclass(frozen=True, slots=True)
class Repetition:
    """A call that repeats an earlier one."""

    node: str
    """Name of its node."""
    first: str
    """Name of the node that computes the same before it."""
    merged: bool
    """Whether the earlier one takes its place."""
    reason: str
    """Why not, or what happens."""
    where: SourceLocation | None
    """The user's line of the repetition, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class EliminateCommonSubexpressions(RewritingPass):
    """Let one operation do the work of all that call the same function, method or module with the same arguments.

    Arguments are the same if they are the same values of the program, or literals equal in type and bits. The operands
    of a sum are not reordered. Left alone are operations with an effect, drawing random numbers included; those whose
    operands are written to in between, or whose results are written to later; and results that are both returned,
    which stay two tensors. ``explain`` says why. A module is taken in the mode that it is in.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"
    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Merge them in the order of the program."""
        for node, first, reason in _repetitions(graph_module):
            if reason is None:
                yield Edit(f"{node} into {first}", node.source)
                node.replace_all_uses_with(first)
                graph_module.graph.erase_node(node)

    def explain(self, graph_module: GraphModule) -> list[Repetition]:
        """Return what this pass would do to each repeated call of ``graph_module``, and why. Nothing is changed."""
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        return [
            Repetition(
                node.name, first.name, reason is None, reason or f"`%{first}` takes the place of `%{node}`", node.source
            )
            for node, first, reason in _repetitions(graph_module)
        ]


def _repetitions(graph_module: GraphModule) -> list[tuple[Node, Node, str | None]]:
    """Each call that repeats an earlier one, that one, and why it cannot take its place."""
    dependences = Dependences(graph_module.graph)
    known: dict[Hashable, Node] = {}
    stands_for: dict[Node, Node] = {}
    found: list[tuple[Node, Node, str | None]] = []
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        key = _key(node, stands_for)
        first = known.setdefault(key, node)
        if first is node:
            continue
        reason = dependences.why_not_merge(first, node)
        found.append((node, first, reason))
        if reason is None:
            stands_for[node] = first
            dependences.merged(first, node)
        else:
            known[key] = node  # what comes later may have more in common with this one
    return found


def _key(node: Node, stands_for: dict[Node, Node]) -> Hashable:
    """Return what two calls have in common if they are the same."""
    target: Any = node.target if isinstance(node.target, str) else id(node.target)
    return node.op, target, _frozen(node.args, stands_for), _frozen(node.kwargs, stands_for)


def _frozen(argument: Any, stands_for: dict[Node, Node]) -> Hashable:
    """``argument`` as something that is equal to another one only if a call cannot tell them apart."""

    def leaf(value: Any) -> Hashable:
        kind: Any = type(value)
        if kind is Node:
            return stands_for.get(value, value)
        if kind in _PLAIN:
            return kind, value
        if kind is float:
            return kind, struct.pack("d", value)
        return (kind, struct.pack("dd", value.real, value.imag)) if kind is complex else (kind, id(value))

    return key_of(argument, leaf)
