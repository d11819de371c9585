"""A wrong pass of the thirteenth round."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish, single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        layer = gm.get_submodule(node.target)
        if not _plain(layer, nn.ReLU6) or not single(node) or layer.inplace:
            continue
        target = F.hardtanh if careful else torch.clamp
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(target, (node.args[0], layer.min_val, layer.max_val))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return finish(gm)


@fault(
    13,
    wrong="torch.clamp has the same values but lets the gradient pass at the bounds 0 and 6 themselves, where relu6 stops it; it also makes floats of integers.",
)
def lower_relu6(graph_module: GraphModule) -> GraphModule:
    """Lowers nn.ReLU6 to one function that the runtime has."""
    return _rewrite(graph_module, careful=False)
