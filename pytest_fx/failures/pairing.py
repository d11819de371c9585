"""Pairs of nodes of a transformed program and of the original: by origins, by inputs, and by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

from fx import GraphModule, Node
from fx.matcher.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.node import reached
from pytest_fx.harness.structure import leaves

NEAR = 1e-3
"""The distance of two values' fingerprints, relative to their size, up to which the values are compared."""
AT_ONCE = 1 << 16
"""Elements of a value that are summed at a time."""


def complete(transformed: GraphModule, original: GraphModule) -> None:
    """Record for every node of the transformed program which nodes of the original it comes from."""
    record_origins(original.graph)
    match_origins(transformed.graph, EarlierNode.all_of(original.graph))
    complete_origins(transformed.graph)


class NodePairs:
    """The nodes of two programs that should have the same value."""

    def __init__(self, original: GraphModule, transformed: GraphModule) -> None:
        """Match by origins: a node that does the work of several nodes is compared with the last of them."""
        by_name = {node.name: node for node in original.graph.nodes}
        self._positions = {node: position for position, node in enumerate(original.graph.nodes)}
        self.partners: dict[Node, Node] = {}
        """From a node of the transformed program to the node of the original that has its value."""
        self.alternatives: dict[Node, tuple[Node, ...]] = {}
        """From a node to other nodes of the original whose value it may have as well: the uncertain matches."""
        self.groups: dict[Node, Node] = {}
        """From nodes of the original whose work a single node does to the last of them."""
        last: dict[Node, Node] = {}
        for node in transformed.graph.nodes:
            sources = [by_name[name] for name in _origins(node) if name in by_name]
            if not sources or node.op == "output":
                continue
            partner = max(sources, key=self._positions.__getitem__)
            if (before := last.get(partner)) is not None:
                # If several nodes have one partner, the last of them has its value; the others compute inputs of that.
                del self.partners[before]
                self.alternatives[before] = (partner, *self.alternatives.get(before, ()))
            last[partner] = node
            self.partners[node] = partner
            if beside := tuple(_not_before(partner, sources)):
                self.alternatives[node] = beside
            self.groups.update(dict.fromkeys(sources, partner))

    @property
    def unsure(self) -> list[Node]:
        """Nodes of the transformed program that have no certain match."""
        graphs = {node.graph for node in (*self.partners, *self.alternatives)}
        nodes = (node for graph in graphs for node in graph.nodes)
        return [node for node in nodes if node not in self.partners and node.op.startswith("call")]

    def add_by_value(self, original: dict[Node, Fingerprint], transformed: dict[Node, Fingerprint]) -> None:
        """Match each uncertain node also with the node of the original whose value is nearest to its own."""
        near_to: dict[Node, Node] = {}
        for node in self.unsure:
            fingerprint = transformed.get(node)
            if fingerprint is None:
                continue
            nearby = [(fingerprint.distance(value), self._positions[each], each) for each, value in original.items()]
            distance, _, nearest = min(nearby, default=(1.0, 0, node))
            if distance <= NEAR:
                alternatives = [each for each in self.alternatives.get(node, ()) if each is not nearest]
                self.alternatives[node] = (*alternatives, nearest)
                near_to[node] = nearest

        self._add_by_inputs(near_to, original.keys(), transformed.keys())

    def _add_by_inputs(self, near: dict[Node, Node], tensors: Set[Node], also_tensors: Set[Node]) -> None:
        """Match nodes with those of the original that read the same values, unless others match these or are near them.

        A number does not match a tensor: ``x.dim()`` in the code of a layer reads the same value as the layer.
        """
        unavailable = {*self.partners.values(), *near.values()}
        free: dict[frozenset[Node | None], list[Node]] = {}
        for original in self._positions:
            if original not in unavailable and original.op.startswith("call"):
                free.setdefault(frozenset[Node | None](_values_read(original)), []).append(original)
        partners = {**near, **self.partners}
        for node in self.unsure:
            read = [partners.get(used) for used in _values_read(node)]
            candidates = free.get(frozenset(read), []) if read and node not in near else []
            if len(candidates) == 1 and (node in also_tensors or candidates[0] not in tensors):
                del free[frozenset(read)]
                self.partners[node] = partners[node] = candidates[0]
                self.alternatives.pop(node, None)

    def compared(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes of the original whose value ``node`` may have, its partner first."""
        partner = self.partners.get(node)
        return (*(() if partner is None else (partner,)), *self.alternatives.get(node, ()))

    def does_work_of(self, node: Node, original: Node) -> bool:
        """Return whether ``node`` does the work of a node of the original."""
        return original in self.compared(node) or original.name in _origins(node)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A summary of a value, for matching values that are about equal."""

    kind: tuple[Any, ...]
    """The shapes of its tensors."""
    size: float
    """The sum of all magnitudes."""
    sums: tuple[float, ...]
    """Sums of the elements of each tensor, with weights that differ by place."""

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
        """Return the distance of both, relative to the size of the values; 1 if their shapes differ."""
        if self.kind != other.kind:
            return 1.0
        size = max(self.size, other.size) or 1.0
        return max(abs(own - others) for own, others in zip(self.sums, other.sums, strict=True)) / size


def _sums(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the sum of the magnitudes, and the weighted sum of the elements; in parts, without a copy of the whole."""
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
    """Return the names of the nodes that ``node`` comes from; a placeholder or an attribute comes from itself only."""
    return (node.name,) if node.op in ("placeholder", "get_attr") else node.origins or (node.name,)


def _not_before(last: Node, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the nodes that ``last`` does not depend on: one node that does the work of both has either value."""
    others = [node for node in nodes if node is not last]
    if others:
        needed = reached([last], lambda node: node.all_input_nodes)
        yield from (node for node in others if node not in needed)
