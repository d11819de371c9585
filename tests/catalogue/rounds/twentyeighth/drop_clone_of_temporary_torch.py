"""A right pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import plain

LAYERS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.LayerNorm, torch.nn.BatchNorm2d)


@sound(28)
def drop_clone_of_temporary(gm: torch.fx.GraphModule):
    """Drops the clone of a layer output that nothing but the clone reads."""
    for node in list(gm.graph.nodes):
        method = node.op == "call_method" and node.target == "clone"
        if (
            not (method or node.op == "call_function" and node.target is torch.clone)
            or len(node.args) != 1
            or node.kwargs
        ):
            continue
        source = node.args[0]
        if isinstance(source, torch.fx.Node) and plain(gm, source, *LAYERS) and len(source.users) == 1:
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
