"""A wrong pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _window(node):
    """The side of a plain window whose stride is its size, or None."""
    if node.op != "call_function" or node.target is not F.avg_pool2d or node.kwargs or not 2 <= len(node.args) <= 3:
        return None
    size, stride = node.args[1], node.args[2] if len(node.args) == 3 else node.args[1]
    return size if type(size) is int and stride == size else None


def _rewrite(gm, refuses):
    for second in list(gm.graph.nodes):
        first = second.args[0] if second.args else None
        if _window(second) is None or not isinstance(first, torch.fx.Node) or _window(first) is None:
            continue
        if refuses(first):
            continue
        first.args = (first.args[0], _window(first) * _window(second))
        second.replace_all_uses_with(first)
        gm.graph.erase_node(second)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    23,
    wrong="The first pooling is edited in place into the merged one, also when it has other users, which then see the bigger window.",
)
def merge_avg_pools_twentythird(gm: torch.fx.GraphModule):
    """Merge two average poolings in a row into one with the product of the windows (pyramids and stems often have them)."""
    return _rewrite(gm, lambda first: False)
