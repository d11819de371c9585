"""A right pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import sound

NONNEGATIVE = {torch.relu, F.relu, F.relu6, F.hardsigmoid}


def plain(node, targets):
    """Return whether ``node`` calls one of the functions on one tensor, not in place."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target not in targets:
        return False
    return len(node.args) == 1 and not any(value is not False for value in node.kwargs.values())


@sound(25)
def drop_second_relu_twentyfifth(gm):
    """Drop a ReLU of what is never negative: of another ReLU, ReLU6 or hard sigmoid."""
    for node in list(gm.graph.nodes):
        if not plain(node, (torch.relu, F.relu)):
            continue
        source = node.args[0]
        # fresh, and read by nobody else: what is done to the result later is seen by nobody else either
        if plain(source, NONNEGATIVE) and len(source.users) == 1:
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
