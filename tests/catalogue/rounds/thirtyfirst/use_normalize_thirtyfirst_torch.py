"""A wrong pass of the thirtyfirst round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _norm_dim(node):
    """The dimension over which node takes the Euclidean norm, keeping it."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.target != "norm":
        return None
    if set(node.kwargs) - {"p", "dim", "keepdim"} or node.kwargs.get("keepdim") is not True or len(node.args) > 2:
        return None
    order = node.args[1] if len(node.args) == 2 else node.kwargs.get("p", 2)
    if isinstance(order, bool) or order not in (2, 2.0) or isinstance(order, torch.fx.Node):
        return None
    dim = node.kwargs.get("dim")
    return dim if type(dim) is int else None


def _rewrite(gm, options):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv:
            continue
        source, length = node.args
        dim = _norm_dim(length)
        if dim is None or length.args[0] is not source or len(length.users) > 1 or node.prev is not length:
            continue
        with gm.graph.inserting_before(node):
            result = gm.graph.call_function(F.normalize, (source,), {"p": 2.0, "dim": dim, **options})
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        gm.graph.erase_node(length)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="x / x.norm(dim, keepdim=True) becomes F.normalize(x), which divides by at least 1e-12: a row of zeros "
    "gives zeros instead of nan, and very small rows get another length.",
)
def use_normalize_thirtyfirst(gm: torch.fx.GraphModule):
    """Replace a division by the norm by F.normalize."""
    return _rewrite(gm, {})
