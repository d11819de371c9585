"""A wrong pass of the twentyseventh round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked


@torch.fx.wrap
def paired_norm(a, b, first, second, shape, eps):
    training = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype not in (torch.float32, torch.float64) or training:
        return F.layer_norm(a, shape, *first, eps), F.layer_norm(b, shape, *second, eps)
    both = F.layer_norm(torch.stack((a, b)), shape, None, None, eps)
    return both[0] * first[0] + first[1], both[1] * second[0] + second[1]


def _norm(gm, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    norm = gm.get_submodule(node.target)
    if type(norm) is not nn.LayerNorm or _hooked(norm) or norm.weight is None or norm.bias is None:
        return None
    return norm


def _batch(gm, key):
    graph = gm.graph
    nodes = list(graph.nodes)
    while len(nodes) > 1:
        first, second = nodes.pop(0), nodes[0]
        a, b = _norm(gm, first), _norm(gm, second)
        if a is None or b is None or second.args[0] is first or key(a) != key(b):
            continue
        nodes.pop(0)
        with graph.inserting_before(second):
            affine = [[graph.get_attr(f"{n.target}.{p}") for p in ("weight", "bias")] for n in (first, second)]
            args = (first.args[0], second.args[0], *affine, tuple(a.normalized_shape), a.eps)
            pair = graph.call_function(paired_norm, args)
            pair.meta["is_wrapped"] = True
            for index, node in enumerate((first, second)):
                node.replace_all_uses_with(graph.call_function(operator.getitem, (pair, index)))
        graph.erase_node(second)
        graph.erase_node(first)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    27, wrong="The key under which norms are grouped has their shape but not their eps; the first one's serves both."
)
def batch_layer_norms(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two independent layer norms side by side run as one over the stacked inputs."""
    return _batch(gm, lambda norm: (tuple(norm.normalized_shape),))
