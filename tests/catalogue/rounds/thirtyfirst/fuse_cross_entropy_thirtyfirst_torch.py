"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _given(kwargs):
    return {name: value for name, value in kwargs.items() if value is not None}


def _fuse(gm, dim_ok):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss or len(node.args) != 2:
            continue
        log_probs, target = node.args
        options = _given(node.kwargs)
        if set(options) - {"weight", "ignore_index", "reduction"} or not isinstance(log_probs, torch.fx.Node):
            continue
        if log_probs.target is not F.log_softmax or len(log_probs.users) > 1 or node.prev is not log_probs:
            continue
        if target is log_probs or any(value is log_probs for value in options.values()):
            continue
        inner = _given(log_probs.kwargs)
        inner.pop("_stacklevel", None)
        dim = inner.pop("dim", log_probs.args[1] if len(log_probs.args) == 2 else None)
        if inner or type(dim) is not int or not log_probs.args or not dim_ok(dim):
            continue
        with gm.graph.inserting_before(node):
            loss = gm.graph.call_function(F.cross_entropy, (log_probs.args[0], target), options)
        node.replace_all_uses_with(loss)
        gm.graph.erase_node(node)
        gm.graph.erase_node(log_probs)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="nll_loss(log_softmax(x, dim)) becomes cross_entropy(x) whatever dim is; cross_entropy normalizes over "
    "dimension 1, which is not the last one for logits of shape (N, C, L).",
)
def fuse_cross_entropy_thirtyfirst(gm: torch.fx.GraphModule):
    """Fuse log_softmax and nll_loss into cross_entropy."""
    return _fuse(gm, lambda dim: True)
