"""A wrong pass of the twentyninth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _log_softmax_dim(node):
    """The dimension of F.log_softmax(x, dim) or torch.log_softmax(x, dim) without a type; None if it is neither."""
    if (
        node.op != "call_function"
        or node.target not in (F.log_softmax, torch.log_softmax)
        or len(node.args) not in (1, 2)
    ):
        return None
    if node.kwargs.get("dtype") is not None or set(node.kwargs) - {"dim", "_stacklevel", "dtype"}:
        return None
    return node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")


def _fuse(gm, dims):
    for loss in list(gm.graph.nodes):
        if loss.op != "call_function" or loss.target is not F.nll_loss or len(loss.args) != 2:
            continue
        logs, target = loss.args
        if not isinstance(logs, torch.fx.Node) or list(logs.users) != [loss]:
            continue
        dim, between = _log_softmax_dim(logs), logs.next
        while between.op == "get_attr":
            between = between.next
        if type(dim) is not int or dim not in dims or between is not loss or target is logs:
            continue
        options = dict(loss.kwargs)
        if options.pop("size_average", None) is not None or options.pop("reduce", None) is not None:
            continue
        if set(options) - {"weight", "ignore_index", "reduction"} or options.get("weight") is logs:
            continue
        with gm.graph.inserting_before(loss):
            fused = gm.graph.call_function(F.cross_entropy, (logs.args[0], target), options)
        loss.replace_all_uses_with(fused)
        gm.graph.erase_node(loss)
        gm.graph.erase_node(logs)
    gm.recompile()
    return gm


@fault(
    29, wrong="cross_entropy normalizes over dimension 1; dim=-1 is that one only where the scores have two dimensions."
)
def fuse_cross_entropy_twentyninth(gm: torch.fx.GraphModule):
    """Fuse nll_loss(log_softmax(x)) into cross_entropy, which has a fused kernel."""
    return _fuse(gm, (1, -1))
