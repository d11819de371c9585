"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

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


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(modules[node.target], nn.ReLU6):
            continue
        if len(node.args) != 1 or node.kwargs or modules[node.target].inplace:
            continue
        with graph.inserting_before(node):
            if careful:
                clamped = graph.call_function(F.hardtanh, (node.args[0], 0.0, 6.0))
            else:
                clamped = graph.call_function(torch.clamp, (node.args[0], 0.0, 6.0))
        node.replace_all_uses_with(clamped)
        graph.erase_node(node)
    return finish(graph_module)


@fault(
    16,
    wrong="torch.clamp passes the gradient on at the bounds, ReLU6 does not: inputs that are exactly 0 (after a ReLU) get another gradient.",
)
def relu6_to_clamp(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes nn.ReLU6 modules as torch.clamp, for backends that have no ReLU6."""
    return _rewrite(graph_module, careful=False)
