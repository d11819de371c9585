"""A right pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import sound
from .shared import _arg


def _logs_dim(node):
    """The dimension of a plain log_softmax, or None."""
    if node.op == "call_function" and node.target is F.log_softmax:
        dim, dtype = _arg(node, 1, "dim"), _arg(node, 3, "dtype")
    elif (node.op, node.target) in (("call_method", "log_softmax"), ("call_function", torch.log_softmax)):
        dim, dtype = _arg(node, 1, "dim"), _arg(node, 2, "dtype")
    else:
        return None
    return dim if type(dim) is int and dtype is None and "out" not in node.kwargs else None


@sound(30)
def softmax_of_exp(gm: torch.fx.GraphModule):
    """Make one softmax of log_softmax and exp."""
    for node in list(gm.graph.nodes):
        if (node.op, node.target) not in (("call_method", "exp"), ("call_function", torch.exp)):
            continue
        logs = _arg(node, 0, "input")
        if node.kwargs or not isinstance(logs, torch.fx.Node) or len(logs.users) != 1 or _logs_dim(logs) is None:
            continue
        with gm.graph.inserting_before(logs):
            weights = gm.graph.call_function(F.softmax, (_arg(logs, 0, "input"),), {"dim": _logs_dim(logs)})
        node.replace_all_uses_with(weights)
        gm.graph.erase_node(node)
        gm.graph.erase_node(logs)
    gm.graph.lint()
    gm.recompile()
    return gm
