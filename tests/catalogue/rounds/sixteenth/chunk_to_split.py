"""A wrong pass of the sixteenth round."""

import torch
from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.chunk or len(node.args) != 2:
            continue
        value, parts = node.args
        if node.kwargs != {"dim": -1} or type(parts) is not int or parts < 1 or not isinstance(value, Node):
            continue
        if value.op != "call_module" or not _plain(modules[value.target], nn.Linear) or node.prev is not value:
            continue
        features = modules[value.target].out_features
        if features < parts or modules[value.target].weight.shape[0] != features:
            continue
        size = -(-features // parts) if careful else features // parts
        with graph.inserting_before(node):
            split = graph.call_function(torch.split, (value, size), {"dim": -1})
        node.replace_all_uses_with(split)
        graph.erase_node(node)
    return finish(graph_module)


@fault(16, wrong="The size is rounded down; torch.chunk rounds it up where the features do not divide evenly.")
def chunk_to_split(graph_module: GraphModule) -> GraphModule:
    """Writes torch.chunk of a linear layer's features as torch.split with the size of the parts, which is known."""
    return _rewrite(graph_module, careful=False)
