"""A right pass of the twentyfourth round."""

import torch
import torch.fx

from ...rows import sound


def _is_call(node, target, count):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not target:
        return False
    return len(node.args) == count and not node.kwargs


@sound(24)
def not_equal(gm: torch.fx.GraphModule):
    """Merge each negated comparison."""
    for node in [*gm.graph.nodes]:
        if not _is_call(node, torch.logical_not, 1) or not _is_call(node.args[0], torch.eq, 2):
            continue
        compared = node.args[0]
        if compared.next is not node or len(compared.users) != 1:
            continue
        node.target = torch.ne
        node.args = compared.args
        gm.graph.erase_node(compared)
    gm.recompile()
    return gm
