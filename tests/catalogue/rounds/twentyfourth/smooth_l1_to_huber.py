"""A wrong pass of the twentyfourth round."""

import torch
from torch.nn import functional as F

from ...rows import fault


def _convert(gm, divide):
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=F.smooth_l1_loss):
        options = dict(node.kwargs)
        beta = options.pop("beta", 1.0)
        if len(node.args) != 2 or not isinstance(beta, (int, float)) or beta <= 0:
            continue  # beta=0 is the L1 loss, which Huber has not
        reduction = options.pop("reduction", "mean")
        if any(value is not None for value in options.values()):
            continue  # the deprecated size_average and reduce
        with graph.inserting_before(node):
            new = graph.call_function(F.huber_loss, node.args, {"reduction": reduction, "delta": float(beta)})
            if divide:
                new = graph.call_function(torch.div, (new, float(beta)))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(24, wrong="Smooth L1 is Huber divided by beta; without the division the two agree only for beta=1.")
def smooth_l1_to_huber(gm):
    """Replace smooth_l1_loss(beta) by huber_loss(delta=beta)."""
    return _convert(gm, divide=False)
