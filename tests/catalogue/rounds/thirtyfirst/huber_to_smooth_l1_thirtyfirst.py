"""A wrong pass of the thirtyfirst round."""

import torch.nn.functional as F

import fx

from ...rows import fault


@fault(
    31,
    wrong="The Huber loss of a float32 input and a float64 target is of float32, the smooth L1 loss is of float64.",
)
def huber_to_smooth_l1_thirtyfirst(gm: fx.GraphModule):
    """Replace the Huber loss by the smooth L1 loss, which more backends have."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.huber_loss or len(node.args) != 2:
            continue
        options = dict(node.kwargs)
        delta, reduction = options.pop("delta", 1.0), options.pop("reduction", "mean")
        if any(value is not None for value in options.values()) or isinstance(delta, (bool, fx.Node)) or delta != 1:
            continue
        if reduction not in ("none", "mean", "sum"):
            continue
        with gm.graph.inserting_before(node):
            loss = gm.graph.call_function(F.smooth_l1_loss, node.args, {"reduction": reduction, "beta": 1.0})
        node.replace_all_uses_with(loss)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
