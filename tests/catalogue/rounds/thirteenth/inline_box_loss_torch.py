"""A wrong pass of the thirteenth round."""

import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        loss = gm.get_submodule(node.target)
        if not _plain(loss, nn.SmoothL1Loss) or len(node.args) != 2 or node.kwargs:
            continue
        options = {"reduction": loss.reduction}
        if careful:
            options["beta"] = loss.beta
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(F.smooth_l1_loss, node.args, options)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return finish(gm)


@fault(13, wrong="beta is not passed on, so that a loss with another transition point gets that of 1.")
def inline_box_loss(graph_module: GraphModule) -> GraphModule:
    """Opens nn.SmoothL1Loss, the loss of box regression, into its function."""
    return _rewrite(graph_module, careful=False)
