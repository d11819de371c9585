"""Clusters: nodes drawn inside their modules, and repeated blocks (``Block × 12``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.drawn_program import Path


@dataclass(slots=True, eq=False)
class Cluster:
    """A group of nodes drawn together: those of one call of a module, or repeated modules.

    A cluster holds a run of consecutive nodes, so that clusters never depend on each other in a cycle.
    """

    path: str
    """The path of the module; for repeated modules the paths of the first and the last."""
    title: str
    """The class of the module; for repeated modules with their number, as ``Block × 12``."""
    members: list[Cluster | int] = field(default_factory=list["Cluster | int"])
    """Nodes, by number, and clusters, in order."""
    count: int = 1
    """The number of repeated modules in it, or 1."""
    form: Hashable = None
    """A key, equal for clusters of the same structure."""
    number: int = 0
    """Its number among the clusters of a program."""

    def nodes(self) -> list[int]:
        """Return all nodes in it, in order."""
        nodes: list[int] = []
        pending: list[Cluster | int] = [self]
        while pending:
            member = pending.pop()
            if isinstance(member, Cluster):
                pending += reversed(member.members)
            else:
                nodes.append(member)
        return nodes

    def blocks(self) -> list[Cluster]:
        """Return the clusters among its members."""
        return [member for member in self.members if isinstance(member, Cluster)]


def make_clusters(
    modules: Sequence[Path],
    classes: Mapping[str, str],
    kinds: Sequence[Hashable],
    inputs: Sequence[Iterable[int]],
    largest: int | None = None,
    order: Sequence[int] | None = None,
) -> Cluster:
    """Put nodes into clusters by the modules around them.

    Args:
        modules: the modules around each node.
        classes: the class of each module.
        kinds: a key for the operation of each node, without its name; blocks with equal operations repeat.
        inputs: the nodes that each node reads.
        largest: cut clusters with more members than these into parts of consecutive members.
        order: the nodes in the order of their insertion into clusters; by default in the order of their numbers.

    Returns:
        The root.
    """
    root = Cluster("", "")
    opened: list[Cluster] = [root]
    around: list[str] = []
    for node in range(len(modules)) if order is None else order:
        path = modules[node]
        shared = shared_length(around, path)
        del opened[shared + 1 :], around[shared:]
        for key in path[shared:]:
            cluster = Cluster(key, classes.get(key, ""))
            opened[-1].members.append(cluster)
            opened.append(cluster)
            around.append(key)
        opened[-1].members.append(node)
    _simplify(root)
    _find_forms(root, kinds, inputs)
    _gather_repeats(root)
    if largest is not None:
        _cut(root, largest)
    for number, cluster in enumerate(all_clusters(root)):
        cluster.number = number
    return root


def shared_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the number of elements that are equal at the start of both."""
    return next(
        (place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )


def all_clusters(root: Cluster) -> list[Cluster]:
    """Return a cluster and all clusters in it, outer ones first."""
    clusters = [root]
    for cluster in clusters:
        clusters += cluster.blocks()
    return clusters


def _simplify(root: Cluster) -> None:
    """Replace each cluster of one node by the node: its frame would add nothing."""
    for cluster in reversed(all_clusters(root)):
        cluster.members = [
            member.members[0] if isinstance(member, Cluster) and len(member.members) == 1 else member
            for member in cluster.members
        ]


def _find_forms(root: Cluster, kinds: Sequence[Hashable], inputs: Sequence[Iterable[int]]) -> None:
    """Give clusters of the same structure the same form: equal operations with equal edges between them."""
    forms: dict[Hashable, int] = {}
    for cluster in reversed(all_clusters(root)):
        nodes = cluster.nodes()
        place = {node: number for number, node in enumerate(nodes)}
        structure = (
            cluster.title,
            tuple(member.form if isinstance(member, Cluster) else -1 for member in cluster.members),
            tuple(kinds[node] for node in nodes),
            tuple(tuple(place.get(read, -1) for read in inputs[node]) for node in nodes),
        )
        cluster.form = forms.setdefault(structure, len(forms))


def _gather_repeats(root: Cluster) -> None:
    """Group neighbours of the same form in a new cluster."""
    for cluster in all_clusters(root):
        members: list[Cluster | int] = []
        for member in cluster.members:
            last = members[-1] if members else None
            if not (isinstance(member, Cluster) and isinstance(last, Cluster) and last.form == member.form):
                members.append(member)
                continue
            if last.count == 1:
                last = members[-1] = Cluster("", "", [last], form=last.form)
            last.members.append(member)
            last.count = len(last.members)
        cluster.members = members
        for group in cluster.blocks():
            if group.count > 1:
                blocks = group.blocks()
                group.path = f"{blocks[0].path} … {blocks[-1].path}"
                group.title = f"{blocks[0].title or 'block'} × {group.count}"


def _cut(root: Cluster, largest: int) -> None:
    """Cut clusters with too many members, until none has more than ``largest``."""
    for cluster in all_clusters(root):
        while len(cluster.members) > largest:
            parts = [cluster.members[start : start + largest] for start in range(0, len(cluster.members), largest)]
            cluster.members = [_part(part) for part in parts]


def _part(members: list[Cluster | int]) -> Cluster:
    nodes = Cluster("", "", members).nodes()
    return Cluster(f"nodes {nodes[0] + 1} to {nodes[-1] + 1}", f"{len(nodes):,} nodes", members)
