"""A right pass of the twentysixth round."""

import torch
import torch.fx

from ...rows import sound

FINDERS = {
    ("call_method", "argmax"),
    ("call_method", "argmin"),
    ("call_function", torch.argmax),
    ("call_function", torch.argmin),
}


@sound(26)
def remove_index_detach(gm: torch.fx.GraphModule):
    """Remove the detach of indices."""
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target != "detach" or len(node.args) != 1 or node.kwargs:
            continue
        index = node.args[0]
        if (index.op, index.target) not in FINDERS or index.kwargs.get("out") is not None or len(index.users) != 1:
            continue
        node.replace_all_uses_with(index)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
