"""A wrong pass of the twentyfourth round."""

import operator

import torch
import torch.fx
from torch.nn import functional as F

from ...rows import fault

SAME_SIZE = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits)  # they refuse targets of another size


def _rewrite(gm, losses):
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=operator.truediv):
        loss, count = node.args
        if not isinstance(loss, torch.fx.Node) or loss.op != "call_function" or loss.target not in losses:
            continue
        if not isinstance(count, torch.fx.Node) or count.op != "call_method" or count.target != "numel":
            continue
        if len(loss.args) != 2 or loss.kwargs.get("reduction") != "sum" or count.args[0] is not loss.args[1]:
            continue
        if loss.target is F.nll_loss and loss.kwargs.get("weight") is not None:
            continue  # a weighted mean
        if any(loss.kwargs.get(name) is not None for name in ("size_average", "reduce")) or len(loss.users) != 1:
            continue
        loss.kwargs = {**loss.kwargs, "reduction": "mean"}
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
        if not count.users:
            graph.erase_node(count)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The mean of nll_loss divides by the number of targets that are not ignore_index, not by the number of targets.",
)
def mean_of_losses(gm: torch.fx.GraphModule):
    """Save the division after a summed loss."""
    return _rewrite(gm, (*SAME_SIZE, F.nll_loss))
