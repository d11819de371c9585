"""A right pass of the twentyfourth round."""

import torch
import torch.fx
from torch.nn import functional as F

from ...rows import sound

PLAIN = {F.softmax: torch.softmax, F.log_softmax: torch.log_softmax}


@sound(24)
def plain_softmax(gm: torch.fx.GraphModule):
    """Change the target of each such call."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in PLAIN or len(node.args) not in (1, 2):
            continue
        if not isinstance(node.args[0], torch.fx.Node) or set(node.kwargs) - {"dim", "_stacklevel", "dtype"}:
            continue
        if len(node.args) == 2 and "dim" in node.kwargs or node.kwargs.get("dtype") is not None:
            continue
        dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
        if type(dim) is not int or type(node.kwargs.get("_stacklevel", 3)) is not int:
            continue
        node.target = PLAIN[node.target]
        node.args = (node.args[0], dim)
        node.kwargs = {}
    gm.recompile()
    return gm
