"""A wrong pass of the twentythird round."""

import torch

import fx

from ...rows import fault

_RESHAPES = {"reshape", "flatten", torch.reshape, torch.flatten}


def _rewrite(gm, refuses):
    for node in gm.graph.find_nodes(op="call_method", target="contiguous"):
        if len(node.args) != 1 or node.kwargs or not node.users:
            continue
        if not all(user.target in _RESHAPES and user.args[:1] == (node,) for user in node.users):
            continue
        if refuses(gm.graph):
            continue
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="The dropped call also made a fresh tensor: a reshape of the strided value can be a view, so that a later write in place reaches the original.",
)
def drop_contiguous_twentythird(gm: fx.GraphModule) -> fx.GraphModule:
    """Drop `.contiguous()` where only reshapes follow: a reshape copies by itself when it has to."""
    return _rewrite(gm, lambda graph: False)
