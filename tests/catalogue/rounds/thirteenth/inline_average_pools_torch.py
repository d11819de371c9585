"""A right pass of the thirteenth round."""

import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from ...rows import sound
from .shared import finish, single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


NAMES = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        pool = gm.get_submodule(node.target)
        if not _plain(pool, nn.AvgPool2d) or not single(node):
            continue
        with gm.graph.inserting_before(node):
            args = (node.args[0], *(getattr(pool, name) for name in NAMES))
            new = gm.graph.call_function(F.avg_pool2d, args)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return finish(gm)


@sound(13)
def inline_average_pools(graph_module: GraphModule) -> GraphModule:
    """Opens nn.AvgPool2d into F.avg_pool2d."""
    return _rewrite(graph_module)
