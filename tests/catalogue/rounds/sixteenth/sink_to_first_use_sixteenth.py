"""A wrong pass of the sixteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish

_PURE = {
    torch.add,
    torch.mul,
    torch.sub,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sum,
    torch.mean,
}


def _blocks(node: Node, careful: bool) -> bool:
    if careful:
        return node.op != "call_function" or node.target not in _PURE or "out" in node.kwargs
    return (
        node.op in ("output", "call_module")
        or (node.op == "call_method" and node.target.endswith("_"))
        or "out" in node.kwargs
        or "inplace" in node.kwargs
    )


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.target not in _PURE or "out" in node.kwargs or not node.users:
            continue
        last, following = node, node.next
        while following.op != "output" and following not in node.users and not _blocks(following, careful):
            last, following = following, following.next
        if last is not node:
            last.append(node)
    return finish(graph_module)


@fault(
    16,
    wrong="Writes are recognized by the trailing underscore of a method; assignments to items (operator.setitem) and augmented operators are not.",
)
def sink_to_first_use_sixteenth(graph_module: GraphModule) -> GraphModule:
    """Moves elementwise operations down to just before their first use, so that their results live shorter."""
    return _rewrite(graph_module, careful=False)
