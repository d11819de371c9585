"""Which nodes of a transformed program stand for which of the original: by origins, by place, and by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

from fx import GraphModule, Node
from fx.origins import EarlierNode, complete_origins, match_origins, record_origins
from pytest_fx.harness.structure import leaves

NEAR = 1e-3
"""How far fingerprints of two values may be apart, for the size of the values, for these to be compared."""
AT_ONCE = 1 << 16
"""Elements of a value that are summed up at a time."""


def complete(transformed: GraphModule, original: GraphModule) -> None:
    """Let every node of the transformed program know which nodes of the original it stands for."""
    record_origins(original.graph)
    match_origins(transformed.graph, EarlierNode.all_of(original.graph))
    complete_origins(transformed.graph)


class NodePairs:
    """Which nodes of two programs should have the same value."""

    def __init__(self, original: GraphModule, transformed: GraphModule) -> None:
        """Match by origins: a node that does the work of several is compared with the last of them."""
        by_name = {node.name: node for node in original.graph.nodes}
        self._positions = {node: position for position, node in enumerate(original.graph.nodes)}
        self.partners: dict[Node, Node] = {}
        """For each node of the transformed program that has one: the node of the original with its value."""
        self.alternatives: dict[Node, tuple[Node, ...]] = {}
        """Others whose value a node may have as well: what is not sure to be what it stands for."""
        self.groups: dict[Node, Node] = {}
        """For nodes of the original whose work one node does together: the last of them."""
        last: dict[Node, Node] = {}
        for node in transformed.graph.nodes:
            found = [by_name[name] for name in _origins(node) if name in by_name]
            if not found or node.op == "output":
                continue
            partner = max(found, key=self._positions.__getitem__)
            if (before := last.get(partner)) is not None:
                # Of several nodes, what is computed last is what the others were computed for.
                del self.partners[before]
                self.alternatives[before] = (partner, *self.alternatives.get(before, ()))
            last[partner] = node
            self.partners[node] = partner
            if beside := tuple(_not_before(partner, found)):
                self.alternatives[node] = beside
            self.groups.update(dict.fromkeys(found, partner))

    @property
    def unsure(self) -> list[Node]:
        """Nodes of the transformed program that stand for none of the original for sure."""
        graphs = {node.graph for node in (*self.partners, *self.alternatives)}
        nodes = (node for graph in graphs for node in graph.nodes)
        return [node for node in nodes if node not in self.partners and node.op.startswith("call")]

    def add_by_value(self, original: dict[Node, Fingerprint], transformed: dict[Node, Fingerprint]) -> None:
        """Let nodes that are unsure also be compared with that of the original whose value is nearest to theirs."""
        near_to: dict[Node, Node] = {}
        for node in self.unsure:
            fingerprint = transformed.get(node)
            if fingerprint is None:
                continue
            nearby = [(fingerprint.distance(other), self._positions[each], each) for each, other in original.items()]
            distance, _, nearest = min(nearby, default=(1.0, 0, node))
            if distance <= NEAR:
                known = [each for each in self.alternatives.get(node, ()) if each is not nearest]
                self.alternatives[node] = (*known, nearest)
                near_to[node] = nearest

        self._add_by_inputs(near_to, original.keys(), transformed.keys())

    def _add_by_inputs(self, near: dict[Node, Node], tensors: Set[Node], also_tensors: Set[Node]) -> None:
        """Let nodes stand for what reads the same in the original, where no other node does or is near it.

        A number is no part of a layer's result: ``x.dim()``, which the code of a layer asks for, reads what it reads.
        """
        taken = {*self.partners.values(), *near.values()}
        free: dict[frozenset[Node | None], list[Node]] = {}
        for original in self._positions:
            if original not in taken and original.op.startswith("call"):
                free.setdefault(frozenset[Node | None](_values_read(original)), []).append(original)
        known = {**near, **self.partners}
        for node in self.unsure:
            read = [known.get(used) for used in _values_read(node)]
            found = free.get(frozenset(read), []) if read and node not in near else []
            if len(found) == 1 and (node in also_tensors or found[0] not in tensors):
                del free[frozenset(read)]
                self.partners[node] = known[node] = found[0]
                self.alternatives.pop(node, None)

    def compared(self, node: Node) -> tuple[Node, ...]:
        """The nodes of the original whose value ``node`` may have, the one that it should have first."""
        partner = self.partners.get(node)
        return (*(() if partner is None else (partner,)), *self.alternatives.get(node, ()))

    def stands_for(self, node: Node, original: Node) -> bool:
        """Return whether ``node`` does the work of a node of the original."""
        return original in self.compared(node) or original.name in _origins(node)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is remembered of a value, to find values that are about the same."""

    kind: tuple[Any, ...]
    """The shapes of its tensors."""
    size: float
    """The sum of all magnitudes."""
    sums: tuple[float, ...]
    """Sums of the elements of each tensor, with weights that tell their places apart."""

    @classmethod
    def of(cls, value: Any) -> Fingerprint | None:
        """Return the fingerprint of a value, or None for one without tensors of numbers."""
        tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
        if not tensors or any(each.layout != torch.strided or each.is_nested or each.is_quantized for each in tensors):
            return None
        shapes = tuple((tuple(each.shape), each.is_floating_point()) for each in tensors)
        sums = [_sums(tensor) for tensor in tensors]
        return cls(shapes, sum(size for size, _ in sums), tuple(weighted for _, weighted in sums))

    def distance(self, other: Fingerprint) -> float:
        """Return how far they are apart, for the size of the values; 1 if they are of other shapes."""
        if self.kind != other.kind:
            return 1.0
        size = max(self.size, other.size) or 1.0
        return max(abs(one - two) for one, two in zip(self.sums, other.sums, strict=True)) / size


def _sums(tensor: torch.Tensor) -> tuple[float, float]:
    """The sum of the magnitudes, and that of the elements with weights; of parts, as large tensors are not copied."""
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat.resolve_conj()).reshape(-1) if flat.is_complex() else flat
    size = weighted = 0.0
    for start in range(0, len(flat), AT_ONCE):
        part = flat[start : start + AT_ONCE].to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0)
        size += float(part.abs().sum())
        weighted += float((part * torch.arange(start, start + len(part), dtype=torch.float64).cos_()).sum())
    return size, weighted


def _values_read(node: Node) -> list[Node]:
    return [used for used in node.all_input_nodes if used.op != "get_attr"]


def _origins(node: Node) -> tuple[str, ...]:
    """The names of what ``node`` stands for; what fetches a value stands for itself only."""
    return (node.name,) if node.op in ("placeholder", "get_attr") else node.origins or (node.name,)


def _not_before(last: Node, found: Iterable[Node]) -> Iterator[Node]:
    """Those of ``found`` that ``last`` does not depend on: one node that does the work of both has either value."""
    others = [node for node in found if node is not last]
    if not others:
        return
    needed, pending = {last}, [last]
    while pending:
        for read in pending.pop().all_input_nodes:
            if read not in needed:
                needed.add(read)
                pending.append(read)
    yield from (node for node in others if node not in needed)
