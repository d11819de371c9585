"""A right pass of the twentythird round."""

import torch
import torch.fx

from ...rows import sound

_PLAIN = {
    torch.concat: torch.cat,
    torch.multiply: torch.mul,
    torch.subtract: torch.sub,
    torch.absolute: torch.abs,
    torch.negative: torch.neg,
    torch.moveaxis: torch.movedim,
    torch.greater: torch.gt,
    torch.less: torch.lt,
}


def _usual(node):
    """Tell whether the positional arguments are those that both spellings take: a value first, as many as usual."""
    if node.target is torch.concat:
        return len(node.args) in (1, 2) and isinstance(node.args[0], (list, tuple))
    count = {torch.absolute: 1, torch.negative: 1, torch.moveaxis: 3}.get(node.target, 2)
    return len(node.args) == count and isinstance(node.args[0], torch.fx.Node)


@sound(23)
def plain_names(gm: torch.fx.GraphModule):
    """Write the aliases of torch's functions by their plain names, so that later passes need to know one name only."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and not node.kwargs and node.target in _PLAIN and _usual(node):
            node.target = _PLAIN[node.target]
    gm.graph.lint()
    gm.recompile()
    return gm
