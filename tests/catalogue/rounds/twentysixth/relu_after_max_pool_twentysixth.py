"""A right pass of the twentysixth round."""

from torch import nn

import fx

from ...rows import sound
from .shared import _hooked


def _module(gm, node, kinds):
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = gm.get_submodule(node.target)
    return module if type(module) in kinds and not _hooked(module) else None


@sound(26)
def relu_after_max_pool_twentysixth(gm: fx.GraphModule):
    """Pool first, then ReLU: fewer elements to clip."""
    for node in list(gm.graph.nodes):
        pool = _module(gm, node, (nn.MaxPool2d,))
        if pool is None or pool.return_indices:
            continue
        clip = node.args[0]
        relu = _module(gm, clip, (nn.ReLU,))
        if relu is None or relu.inplace or len(clip.users) != 1:
            continue
        if _module(gm, clip.args[0], (nn.Conv2d,)) is None:
            continue
        with gm.graph.inserting_before(clip):
            pooled = gm.graph.call_module(node.target, clip.args)
            clipped = gm.graph.call_module(clip.target, (pooled,))
        node.replace_all_uses_with(clipped)
        gm.graph.erase_node(node)
        gm.graph.erase_node(clip)
    gm.recompile()
    return gm
