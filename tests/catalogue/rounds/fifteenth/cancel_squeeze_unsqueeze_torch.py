"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import fault


def is_call(node, name):
    if not isinstance(node, Node) or node.op != "call_method" or node.target != name or node.kwargs:
        return False
    return len(node.args) == 2 and type(node.args[1]) is int


@fault(15, wrong="The dimension is taken to have size 1; squeeze keeps a larger one, and unsqueeze then adds another.")
def cancel_squeeze_unsqueeze(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop ``squeeze(d).unsqueeze(d)``: it takes out a dimension of size 1 and puts it back."""
    for node in list(graph_module.graph.nodes):
        if not is_call(node, "unsqueeze") or not is_call(node.args[0], "squeeze") or len(node.args[0].users) != 1:
            continue
        squeeze = node.args[0]
        source, dim = squeeze.args
        if node.args[1] != dim:
            continue
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(squeeze)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
