"""Functions of torch.fx for client code: the name of a node's target, and a topological sort of the nodes."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Mapping
from typing import Any

import torch

from fx.argument_types import checked
from fx.errors import GraphError, PassError
from fx.graph_module import GraphModule
from fx.naming.targets import module_qualified_name
from fx.node import Node

CALLABLE_NODE_OPS = frozenset({"call_module", "call_function", "call_method"})
"""The opcodes of nodes that call something."""
NodeList = list[Node]
NodeSet = set[Node]
Names = list[str]
Tensors = tuple[torch.Tensor, ...] | list[torch.Tensor]
TensorOrTensors = torch.Tensor | Tensors


def get_node_target(submodules: Mapping[str, torch.nn.Module], node: Node) -> str:
    """Return the name of a node's target: of a function, of the class of a module, or of a method.

    Args:
        submodules: the modules of the program by their paths, ``dict(graph_module.named_modules())``.
        node: the node.

    Raises:
        PassError: it calls nothing.
    """
    if node.op not in CALLABLE_NODE_OPS:
        remedy = f"pass a node whose op is {', '.join(sorted(CALLABLE_NODE_OPS))}"
        what = f"`%{node}` calls nothing, so it has no target that a table of operators could list"
        raise PassError(what, where=node.source, value=node.format_node(), remedy=remedy)
    target: Any = node.target
    if node.op == "call_module":
        kind: Any = getattr(submodules[target], "_base_class_origin", type(submodules[target]))
        return f"{kind.__module__}.{kind.__name__}"
    return module_qualified_name(target) if node.op == "call_function" else target


def is_node_output_tensor(node: Node) -> bool:
    """Return whether a node's value is a tensor, as :class:`~fx.passes.shape_prop.ShapeProp` has recorded it."""
    kind = node.meta.get("type")
    return isinstance(kind, type) and issubclass(kind, torch.Tensor)


@checked(PassError)
def stable_topological_sort(gm: GraphModule) -> GraphModule:
    """Move each node after the nodes whose values it uses; otherwise keep the order of the graph.

    Raises:
        GraphError: nodes use each other's values.
    """
    sorter = graphlib.TopologicalSorter({node: node.all_input_nodes for node in gm.graph.nodes})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        stuck = ", ".join(f"%{node}" for node in reversed(error.args[1][1:]))
        raise GraphError("the nodes of a graph have no order: they use each other's values", value=stuck) from None
    place = {node: (node.op == "output", number) for number, node in enumerate(gm.graph.nodes)}
    ready: list[tuple[tuple[bool, int], Node]] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, (place[node], node))
        _, node = heapq.heappop(ready)
        gm.graph._root.prepend(node)
        sorter.done(node)
    gm.recompile()
    return gm


legalize_graph = stable_topological_sort
