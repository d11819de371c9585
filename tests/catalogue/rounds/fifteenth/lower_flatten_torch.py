"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import plain


@fault(15, wrong="The size -1 cannot be worked out for an empty batch, where Flatten works.")
def lower_flatten(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower ``nn.Flatten`` to a function."""
    for node in list(graph_module.graph.nodes):
        flatten = plain(graph_module, node, nn.Flatten)
        if flatten is None or (flatten.start_dim, flatten.end_dim) != (1, -1):
            continue
        with graph_module.graph.inserting_before(node):
            batch = graph_module.graph.call_method("size", (node.args[0], 0))
            new = graph_module.graph.call_method("reshape", (node.args[0], batch, -1))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
