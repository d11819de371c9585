"""A wrong pass of the twentysixth round."""

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _plain


def _fuse(gm, dims):
    if not _plain(gm):
        return gm
    for loss in list(gm.graph.nodes):
        if loss.op != "call_function" or loss.target is not F.nll_loss or len(loss.args) != 2:
            continue
        scores, labels = loss.args
        if not isinstance(scores, fx.Node) or scores.op != "call_function" or scores.target is not F.log_softmax:
            continue
        if len(scores.users) != 1 or len(scores.args) != 1 or scores.kwargs.get("dtype") is not None:
            continue
        if type(scores.kwargs.get("dim")) is not int or scores.kwargs["dim"] not in dims:
            continue
        with gm.graph.inserting_before(loss):
            fused = gm.graph.call_function(F.cross_entropy, (scores.args[0], labels), dict(loss.kwargs))
        loss.replace_all_uses_with(fused)
        gm.graph.erase_node(loss)
        gm.graph.erase_node(scores)
    gm.recompile()
    return gm


@fault(
    26, wrong="Takes dim=-1 for the classes; the loss has them at dim 1, which is another one from three dimensions on."
)
def fuse_cross_entropy_twentysixth(gm: fx.GraphModule):
    """nll_loss of log_softmax becomes one cross_entropy."""
    return _fuse(gm, (1, -1))
