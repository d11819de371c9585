"""A wrong pass of the thirtieth round."""

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _arg


def _fuse(gm, class_dims):
    for loss in list(gm.graph.nodes):
        logs = _arg(loss, 0, "input")
        if loss.op != "call_function" or loss.target is not F.nll_loss or not isinstance(logs, fx.Node):
            continue
        if logs.op != "call_function" or logs.target is not F.log_softmax or len(logs.users) != 1:
            continue
        dim, after = _arg(logs, 1, "dim"), logs.next
        while after.op in ("get_attr", "placeholder"):
            after = after.next
        if after is not loss or type(dim) is not int or dim not in class_dims or _arg(logs, 3, "dtype") is not None:
            continue
        if _arg(loss, 3, "size_average") is not None or _arg(loss, 5, "reduce") is not None:
            continue
        with gm.graph.inserting_before(loss):
            fused = gm.graph.call_function(
                F.cross_entropy,
                (_arg(logs, 0, "input"), _arg(loss, 1, "target")),
                {
                    "weight": _arg(loss, 2, "weight"),
                    "ignore_index": _arg(loss, 4, "ignore_index", -100),
                    "reduction": _arg(loss, 6, "reduction", "mean"),
                },
            )
        loss.replace_all_uses_with(fused)
        gm.graph.erase_node(loss)
        gm.graph.erase_node(logs)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="dim=-1 of log_softmax is taken for the dimension of the classes, which for nll_loss is dimension 1: "
    "wrong with inputs of three and more dimensions (a token or pixel loss) whose log_softmax runs over the "
    "last one.",
)
def fuse_cross_entropy_thirtieth(gm: fx.GraphModule):
    """Make one cross_entropy of log_softmax and nll_loss."""
    return _fuse(gm, (1, -1))
