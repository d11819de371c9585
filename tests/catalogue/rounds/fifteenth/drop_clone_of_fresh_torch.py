"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault

FRESH = (F.silu, F.leaky_relu, F.hardswish)


@fault(
    15, wrong="An activation with inplace=True returns its input, so the clone is what keeps later writes out of it."
)
def drop_clone_of_fresh(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop ``clone()`` of the result of an activation that nothing else uses: it is a fresh tensor already."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "clone" or len(node.args) != 1 or node.kwargs:
            continue
        source = node.args[0]
        if source.op != "call_function" or source.target not in FRESH or len(source.users) != 1:
            continue
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
