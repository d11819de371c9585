"""A wrong pass of the thirteenth round."""

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
        up = gm.get_submodule(node.target)
        if not _plain(up, nn.Upsample) or not single(node):
            continue
        options = {"size": up.size, "scale_factor": up.scale_factor, "mode": up.mode, "align_corners": up.align_corners}
        if careful:
            options["recompute_scale_factor"] = up.recompute_scale_factor
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(F.interpolate, node.args, options)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return finish(gm)


@fault(13, wrong="recompute_scale_factor is not passed on, so fractional scales sample at other places.")
def upsample_to_interpolate(graph_module: GraphModule) -> GraphModule:
    """Opens nn.Upsample into F.interpolate, which the exporter knows."""
    return _rewrite(graph_module, careful=False)
