"""A wrong pass of the seventeenth round."""

import torch
import torch.nn.functional as F
from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import has_hooks

FRESH = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _is_temporary(graph_module: GraphModule, node, careful: bool) -> bool:
    if not isinstance(node, Node) or node.op != "call_module" or len(node.users) != 1:
        return False
    module = graph_module.get_submodule(node.target)
    if has_hooks(module):
        return False
    if careful:
        return type(module) in FRESH
    return isinstance(module, (*FRESH, nn.Dropout, nn.Flatten, nn.Identity))


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in graph_module.graph.nodes:
        if (
            node.op == "call_function"
            and node.target in (torch.relu, F.relu)
            and len(node.args) == 1
            and not node.kwargs
        ):
            if _is_temporary(graph_module, node.args[0], careful):
                node.target = torch.relu_
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="What a layer returns counts as fresh; dropout in evaluation, Identity and Flatten return their input or a view of it.",
)
def relu_in_place_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Overwrite what a layer returns by its ReLU, where nothing else reads it."""
    return _rewrite(graph_module, careful=False)
