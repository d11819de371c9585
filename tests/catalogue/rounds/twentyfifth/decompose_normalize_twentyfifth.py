"""A wrong pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

from ...rows import fault


def arguments(input, p=2.0, dim=1, eps=1e-12, out=None):
    return input, p, dim, eps, out


def decompose(gm, divisor):
    graph = gm.graph
    for node in list(graph.find_nodes(op="call_function", target=F.normalize)):
        x, p, dim, eps, out = arguments(*node.args, **node.kwargs)
        if out is not None:
            continue
        with graph.inserting_before(node):
            norm = graph.call_method("norm", (x, p, dim), {"keepdim": True})
            quotient = graph.call_function(torch.div, (x, divisor(graph, x, norm, eps)))
        node.replace_all_uses_with(quotient)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(25, wrong="It forgets eps, which keeps the norm from below: a row of zeros becomes nan instead of zeros.")
def decompose_normalize_twentyfifth(gm):
    """Write F.normalize as a norm and a division, for converters that know no LpNormalization."""
    return decompose(gm, lambda graph, x, norm, eps: norm)
