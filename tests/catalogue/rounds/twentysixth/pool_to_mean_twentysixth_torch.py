"""A right pass of the twentysixth round."""

import torch
import torch.fx
from torch import nn

from ...rows import sound
from .shared import _hooked


def _module(gm, node, kind):
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = gm.get_submodule(node.target)
    return module if type(module) is kind and not _hooked(module) else None


def _flattens(gm, node):
    flatten = _module(gm, node, nn.Flatten)
    if flatten is not None:
        return (flatten.start_dim, flatten.end_dim) == (1, -1)
    if (node.op, node.target) not in (("call_function", torch.flatten), ("call_method", "flatten")):
        return False
    return node.args[1:] == (1,) and not node.kwargs


@sound(26)
def pool_to_mean_twentysixth(gm: torch.fx.GraphModule):
    """A global average pool and the flatten behind it become one mean."""
    for node in list(gm.graph.nodes):
        if not _flattens(gm, node):
            continue
        pooled = node.args[0]
        pool = _module(gm, pooled, nn.AdaptiveAvgPool2d)
        if pool is None or pool.output_size not in (1, (1, 1)) or len(pooled.users) != 1:
            continue
        if _module(gm, pooled.args[0], nn.BatchNorm2d) is None:
            continue
        with gm.graph.inserting_before(pooled):
            mean = gm.graph.call_method("mean", (pooled.args[0],), {"dim": (-2, -1)})
        node.replace_all_uses_with(mean)
        gm.graph.erase_node(node)
        gm.graph.erase_node(pooled)
    gm.recompile()
    return gm
