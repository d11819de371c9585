"""A wrong pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import calls, is_number, replace


@fault(
    32,
    wrong="The Huber loss is beta times the smooth L1 loss; they agree for beta=1 only. Shows in a detector that trains its boxes with F.smooth_l1_loss(boxes, targets, beta=0.1).",
)
def smooth_l1_to_huber_thirtysecond(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Use the Huber loss, whose kernel is faster, in place of the smooth L1 loss."""
    for node in list(graph_module.graph.nodes):
        if not calls(node, (F.smooth_l1_loss,)) or len(node.args) != 2:
            continue
        if node.kwargs.get("size_average") is not None or node.kwargs.get("reduce") is not None:
            continue
        beta, reduction = node.kwargs.get("beta", 1.0), node.kwargs.get("reduction", "mean")
        if not is_number(beta) or beta <= 0:
            continue
        with graph_module.graph.inserting_before(node):
            loss = graph_module.graph.call_function(
                F.huber_loss, node.args, {"reduction": reduction, "delta": float(beta)}
            )
        replace(node, loss)
    graph_module.recompile()
    return graph_module
