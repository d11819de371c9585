"""A wrong pass of the seventeenth round."""

import operator

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write

READERS = {
    torch.add,
    torch.mul,
    torch.sub,
    torch.where,
    torch.matmul,
    operator.add,
    operator.mul,
    operator.sub,
    operator.truediv,
}


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and bool((a == b).all())


def _share(graph_module: GraphModule, equal) -> GraphModule:
    if graph_module.training or may_write(graph_module):
        return graph_module
    buffers = dict(graph_module.named_buffers(remove_duplicate=False))
    distinct: list[Node] = []
    for node in list(graph_module.graph.nodes):
        if node.op != "get_attr" or node.target not in buffers or buffers[node.target].requires_grad:
            continue
        if not all(user.op == "call_function" and user.target in READERS for user in node.users):
            continue
        value = buffers[node.target]
        for other in distinct:
            if other.target != node.target and equal(buffers[other.target], value):
                node.replace_all_uses_with(other)
                graph_module.graph.erase_node(node)
                break
        else:
            distinct.append(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="Buffers are compared by shape and value and not by type, so that an integer one may stand in for a float one.",
)
def share_equal_buffers(graph_module: GraphModule) -> GraphModule:
    """Read one buffer instead of several that hold the same, in evaluation."""
    return _share(graph_module, _are_equal)
