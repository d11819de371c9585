"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from ...rows import fault
from .shared import parameter, parameters_are_plain, plain


def rank_of(node):
    """The rank of the value, if the node itself says it, else None."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (list, tuple)):
        dims = dims[0]
    return len(dims) if all(type(dim) is int for dim in dims) else None


@fault(
    15,
    wrong="With track_running_stats the module normalizes by its running statistics in eval mode (and updates them in training).",
)
def lower_instance_norm1d(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower ``nn.InstanceNorm1d`` of a value of rank 3 to ``F.instance_norm``."""
    for node in list(graph_module.graph.nodes):
        norm = plain(graph_module, node, nn.InstanceNorm1d)
        if norm is None or not parameters_are_plain(norm, "weight", "bias") or rank_of(node.args[0]) != 3:
            continue
        with graph_module.graph.inserting_before(node):
            weight, bias = parameter(graph_module, node, "weight"), parameter(graph_module, node, "bias")
            settings = {"weight": weight, "bias": bias, "use_input_stats": True, "eps": norm.eps}
            new = graph_module.graph.call_function(F.instance_norm, (node.args[0],), settings)
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
