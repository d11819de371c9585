"""A right pass of the seventeenth round."""

import torch
from torch.fx import GraphModule

from ...rows import sound

TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}


@sound(17)
def casts_as_to(graph_module: GraphModule) -> GraphModule:
    """Write the casts that have a method of their own with to()."""
    for node in graph_module.graph.nodes:
        if node.op == "call_method" and node.target in TYPES and len(node.args) == 1 and not node.kwargs:
            node.target, node.args = "to", (node.args[0], TYPES[node.target])
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
