"""A wrong pass of the fifteenth round."""

import torch
import torch.fx

from ...rows import fault


@fault(
    15,
    wrong="The number of sizes is taken for the rank: repeat takes more sizes than the tensor has dimensions and then adds leading ones.",
)
def repeat_to_cat(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write ``x.repeat(1, n, 1)`` as a ``torch.cat`` of n times x, for backends without repeat."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "repeat" or node.kwargs:
            continue
        source, sizes = node.args[0], node.args[1:]
        if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
            sizes = tuple(sizes[0])
        if not 2 <= len(sizes) <= 3 or not all(type(size) is int and size >= 1 for size in sizes):
            continue
        repeated = [dim for dim, size in enumerate(sizes) if size > 1]
        if len(repeated) != 1:
            continue
        dim = repeated[0]
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_function(torch.cat, ([source] * sizes[dim], dim))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
