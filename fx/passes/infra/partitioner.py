"""``CapabilityBasedPartitioner``: make submodules of the nodes that a backend supports, with torch.fx's interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fx.arguments import refusal
from fx.errors import PassError
from fx.graph_module import GraphModule, expect_program
from fx.naming.targets import module_qualified_name
from fx.node import Node, reached
from fx.passes.machinery.partition import find_regions
from fx.passes.machinery.regions import Region, Regions, Spelling
from fx.passes.operator_support import OperatorSupportBase
from fx.passes.tools_common import CALLABLE_NODE_OPS


class Partition:
    """Nodes that become one submodule."""

    def __init__(self, id: int | None = None, nodes: Iterable[Node] | Mapping[Node, Any] | None = None) -> None:
        self.id = id
        self.nodes: dict[Node, None] = dict.fromkeys(nodes or ())

    def __repr__(self) -> str:
        return str(self.nodes)

    def add_node(self, node: Node) -> None:
        """Add a node."""
        self.nodes[node] = None

    def remove_node(self, node: Node) -> None:
        """Remove a node."""
        del self.nodes[node]

    def size(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes)


class CapabilityBasedPartitioner:
    """A partitioner that makes submodules of supported nodes, by :func:`~fx.passes.machinery.partition.find_regions`.

    >>> import torch, fx
    >>> from fx.passes.operator_support import OperatorSupport
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x).neg().exp().sin())
    >>> support = OperatorSupport({"torch.relu": None, "neg": None, "sin": None})
    >>> print(CapabilityBasedPartitioner(program, support).partition_and_fuse().code.strip())
    def forward(self, x):
        fused_0 = self.fused_0(x);  x = None
        exp = fused_0.exp();  fused_0 = None
        sin = exp.sin();  exp = None
        return sin
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: OperatorSupportBase,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
    ) -> None:
        """Set the program and the backend.

        Args:
            graph_module: the program.
            operator_support: decides which nodes the backend supports.
            allows_single_node_partition: also make partitions of one call.
            non_compute_ops: names of functions that compute nothing, so that a partition needs others; in addition to
                ``"_operator.getitem"`` and ``"torch.ops.aten.view"``.
            allowed_single_node_partition_ops: names of functions that may form a partition alone in any case.
        """
        expect_program(graph_module, "a CapabilityBasedPartitioner divides a GraphModule")
        if not hasattr(operator_support, "is_node_supported"):
            what = "operator_support of a CapabilityBasedPartitioner has a method is_node_supported"
            raise refusal(what, operator_support, error=PassError, remedy="create_op_support(function) makes one")
        self.graph_module = graph_module
        self.operator_support = operator_support
        self.allows_single_node_partition = allows_single_node_partition
        self.non_compute_ops = {"_operator.getitem", "torch.ops.aten.view", *(non_compute_ops or ())}
        self.allowed_single_node_partition_ops = frozenset(allowed_single_node_partition_ops or ())

    def propose_partitions(self) -> list[Partition]:
        """Return the partitions, each with its nodes in the order of the program."""
        modules, graph = dict(self.graph_module.named_modules()), self.graph_module.graph
        calls = [node for node in graph.nodes if node.op in CALLABLE_NODE_OPS]
        regions = find_regions(
            graph, [call for call in calls if self.operator_support.is_node_supported(modules, call)]
        )
        return [Partition(number, nodes) for number, nodes in enumerate(filter(self._is_worth_it, regions))]

    def _is_worth_it(self, nodes: Sequence[Node]) -> bool:
        computing = self._computing(nodes)
        alone = self.allows_single_node_partition or self.allowed_single_node_partition_ops.issuperset(
            map(_function_name, computing)
        )
        return len(computing) > 1 or (bool(computing) and alone)

    def _computing(self, nodes: Iterable[Node]) -> list[Node]:
        return [node for node in nodes if _function_name(node) not in self.non_compute_ops]

    def remove_bookend_non_compute_ops(self, partitions: Iterable[Partition]) -> None:
        """Remove leading and trailing functions that compute nothing from the partitions."""
        for partition in partitions:
            nodes = partition.nodes
            computing = self._computing(nodes)
            behind = reached(computing, lambda node, nodes=nodes: filter(nodes.__contains__, node.users))
            before = reached(computing, lambda node, nodes=nodes: filter(nodes.__contains__, node.all_input_nodes))
            partition.nodes = {node: None for node in nodes if node in behind and node in before}

    def fuse_partitions(self, partitions: Iterable[Partition], prefix: str = "fused_") -> GraphModule:
        """Make each partition a submodule of the program, which is changed in place, and return the program.

        Raises:
            PassError: a partition cannot run as a whole.
        """
        named = ((Region(f"{prefix}{number}"), partition) for number, partition in enumerate(partitions))
        regions = Regions(self.graph_module, {node: region for region, partition in named for node in partition.nodes})
        divided = regions.build(regions.in_program_order(-1), Spelling())
        for region in regions.regions:
            self.graph_module.add_submodule(region.name, divided.get_submodule(region.name))
        self.graph_module.graph = divided.graph
        return self.graph_module

    def partition_and_fuse(self, prefix: str = "fused_") -> GraphModule:
        """Make submodules of the partitions that :meth:`propose_partitions` returns, and return the program."""
        return self.fuse_partitions(self.propose_partitions(), prefix)


def _function_name(node: Node) -> str | None:
    return module_qualified_name(node.target) if node.op == "call_function" else None
