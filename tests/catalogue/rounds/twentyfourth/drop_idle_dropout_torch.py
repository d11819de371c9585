"""A right pass of the twentyfourth round."""

import torch
import torch.fx
from torch.nn import functional as F

from ...rows import sound


def _is_idle(node):
    if node.op != "call_function" or node.target is not F.dropout or not 1 <= len(node.args) <= 4:
        return False
    if not isinstance(node.args[0], torch.fx.Node) or set(node.kwargs) - {"p", "training", "inplace"}:
        return False
    options = dict(zip(("input", "p", "training", "inplace"), node.args)) | node.kwargs
    rate = options.get("p", 0.5)
    if type(rate) not in (int, float) or not 0 <= rate <= 1 or type(options.get("inplace", False)) is not bool:
        return False
    return options.get("training", True) is False


@sound(24)
def drop_idle_dropout(gm: torch.fx.GraphModule):
    """Use the argument of each idle call instead of its result."""
    for node in [*gm.graph.nodes]:
        if _is_idle(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
