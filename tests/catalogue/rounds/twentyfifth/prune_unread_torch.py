"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import fault

PURE = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.neg,
    torch.exp,
    torch.sigmoid,
    torch.tanh,
    torch.matmul,
    torch.sum,
    torch.mean,
    torch.cat,
}


def prune(gm, is_dead):
    for node in reversed(list(gm.graph.nodes)):
        if node.op == "call_function" and node.target in PURE and not node.users and is_dead(node):
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(25, wrong="A pure function with out= writes; its result need not be read for that.")
def prune_unread(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dead code: remove calls of known pure functions whose results nobody reads."""
    return prune(gm, lambda node: True)
