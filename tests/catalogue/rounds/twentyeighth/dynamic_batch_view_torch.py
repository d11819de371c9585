"""A right pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import sound


def batch_size(node):
    return (
        isinstance(node, torch.fx.Node)
        and node.op == "call_method"
        and node.target == "size"
        and len(node.args) == 2
        and type(node.args[1]) is int
        and not node.kwargs
    )


@sound(28)
def dynamic_batch_view(gm: torch.fx.GraphModule):
    """Writes the batch in a view as -1 instead of x.size(0), so that the exported program has no size to compute."""
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target not in ("view", "reshape") or node.kwargs or len(node.args) < 2:
            continue
        shape = list(node.args[1]) if isinstance(node.args[1], (list, tuple)) else list(node.args[1:])
        sizes = [place for place, size in enumerate(shape) if batch_size(size)]
        if len(sizes) != 1 or len(shape) < 2:
            continue
        if not all(place in sizes or type(size) is int and size > 0 for place, size in enumerate(shape)):
            continue
        size = shape[sizes[0]]
        shape[sizes[0]] = -1
        node.args = (node.args[0], *shape)
        if not size.users:
            gm.graph.erase_node(size)
    gm.recompile()
    return gm
