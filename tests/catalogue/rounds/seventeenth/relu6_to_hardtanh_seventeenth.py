"""A right pass of the seventeenth round."""

import torch.nn.functional as F

from fx import GraphModule

from ...rows import sound


@sound(17)
def relu6_to_hardtanh_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Write F.relu6 as F.hardtanh, which more backends have."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is not F.relu6 or len(node.args) != 1:
            continue
        if node.kwargs.get("inplace", False) is not False or set(node.kwargs) - {"inplace"}:
            continue
        node.target, node.args, node.kwargs = F.hardtanh, (node.args[0], 0.0, 6.0), {}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
