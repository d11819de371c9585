"""A wrong pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _only_reads_between


def _tensor(gm, node):
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    value = gm
    for part in node.target.split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def _is_conv(gm, node, most):
    if not isinstance(node, torch.fx.Node) or node.target is not F.conv2d or not 3 <= len(node.args) <= most:
        return False
    return all(_tensor(gm, value) is not None for value in node.args[1:3])


def _rewrite(gm, refuses):
    graph = gm.graph
    for second in list(graph.nodes):
        first = second.args[0] if second.args else None
        if not _is_conv(gm, second, 5) or not _is_conv(gm, first, 3) or list(first.users) != [second]:
            continue
        if first.kwargs or set(second.kwargs) - {"padding"} or not _only_reads_between(first, second):
            continue
        small, big = _tensor(gm, first.args[1]), _tensor(gm, second.args[1])
        if small.shape[2:] != (1, 1) or small.shape[0] != big.shape[1] or refuses(second):
            continue
        (x, w1, b1), (_, w2, b2), rest = first.args, second.args[:3], second.args[3:]
        with graph.inserting_before(second):
            matrix = graph.call_function(torch.flatten, (w1, 1))
            weight = graph.call_function(torch.einsum, ("okhw,kc->ochw", w2, matrix))
            sums = graph.call_function(torch.sum, (w2, (2, 3)))
            bias = graph.call_function(torch.addmv, (b2, sums, b1))
        second.args = (x, weight, bias, *rest)
        graph.erase_node(first)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="With a padding, the second convolution sees zeros at the border, not the first one's bias: the bias is folded in anyway.",
)
def merge_pointwise_conv(gm: torch.fx.GraphModule):
    """Multiply a pointwise convolution into the one after it, where nothing stands between them (re-parameterized blocks)."""
    return _rewrite(gm, lambda second: False)
