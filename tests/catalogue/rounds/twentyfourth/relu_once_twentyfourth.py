"""A right pass of the twentyfourth round."""

import torch
from torch.nn import functional as F

import fx

from ...rows import sound


def _is_relu(node):
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target not in (torch.relu, F.relu):
        return False
    return len(node.args) == 1 and all(name == "inplace" and value is False for name, value in node.kwargs.items())


@sound(24)
def relu_once_twentyfourth(gm):
    """Let users of the second ReLU use the first one."""
    for node in [*gm.graph.nodes]:
        if not _is_relu(node) or not _is_relu(node.args[0]):
            continue
        first = node.args[0]
        if first.next is not node or len(first.users) != 1:
            continue
        node.replace_all_uses_with(first)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
