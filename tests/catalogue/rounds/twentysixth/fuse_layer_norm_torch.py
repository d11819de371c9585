"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _plain


def _call(node, target):
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target is target


def _statistic(node, name, x, allowed):
    """x.mean(-1, ...) or x.var(-1, ...) of x, read once."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.target != name:
        return False
    kwargs = {k: v for k, v in node.kwargs.items() if k != "keepdim"}
    return node.args == (x, -1) and kwargs == allowed and len(node.users) == 1


def _kept(node):
    return node.kwargs.get("keepdim") is True


def _fuse(gm, check_keepdim):
    if not _plain(gm):
        return gm
    for node in list(gm.graph.nodes):
        if (
            not _call(node, operator.truediv)
            or not _call(node.args[0], operator.sub)
            or not _call(node.args[1], torch.sqrt)
        ):
            continue
        centered, deviation = node.args
        x, mean = centered.args
        if (
            not isinstance(x, torch.fx.Node)
            or x.op != "call_module"
            or type(gm.get_submodule(x.target)) is not nn.Linear
        ):
            continue
        if not _statistic(mean, "mean", x, {}) or not _call(deviation.args[0], operator.add):
            continue
        stable = deviation.args[0]
        variance, eps = stable.args
        if not _statistic(variance, "var", x, {"unbiased": False}) or type(eps) is not float or eps <= 0:
            continue
        if any(len(n.users) != 1 for n in (centered, deviation, stable)):
            continue
        if check_keepdim and not (_kept(mean) and _kept(variance)):
            continue
        size = gm.get_submodule(x.target).out_features
        with gm.graph.inserting_before(node):
            fused = gm.graph.call_function(F.layer_norm, (x, (size,)), {"eps": eps})
        node.replace_all_uses_with(fused)
        for old in (node, centered, deviation, stable, mean, variance):
            gm.graph.erase_node(old)
    gm.recompile()
    return gm


@fault(
    26,
    wrong="Does not check keepdim: without it the mean and the deviation of row i are taken off column i of square batches.",
)
def fuse_layer_norm(gm: torch.fx.GraphModule):
    """A layer norm spelt out behind a linear layer becomes F.layer_norm."""
    return _fuse(gm, False)
