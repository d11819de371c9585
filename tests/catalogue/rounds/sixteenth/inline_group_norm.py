"""A right pass of the sixteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import sound
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


def _rewrite(graph_module: GraphModule) -> GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(modules[node.target], nn.GroupNorm):
            continue
        if len(node.args) != 1 or node.kwargs:
            continue
        norm = modules[node.target]
        with graph.inserting_before(node):
            weight = None if norm.weight is None else graph.get_attr(f"{node.target}.weight")
            bias = None if norm.bias is None else graph.get_attr(f"{node.target}.bias")
            inlined = graph.call_function(F.group_norm, (node.args[0], norm.num_groups, weight, bias, norm.eps))
        node.replace_all_uses_with(inlined)
        graph.erase_node(node)
    return finish(graph_module)


@sound(16)
def inline_group_norm(graph_module: GraphModule) -> GraphModule:
    """Writes nn.GroupNorm modules as F.group_norm with the parameters read by get_attr."""
    return _rewrite(graph_module)
