"""A wrong pass of the twentyfourth round."""

import operator

import torch
import torch.fx
from torch.nn import functional as F

from ...rows import fault


def _normalized(node, dims):
    """Return whether a node is a plain L2 normalization along one of the dimensions."""
    if not isinstance(node, torch.fx.Node) or node.target is not F.normalize or len(node.users) != 1:
        return False
    options = dict(zip(("input", "p", "dim", "eps"), node.args)) | node.kwargs
    if options.get("p", 2.0) != 2 or options.get("eps", 1e-12) != 1e-12 or options.get("out") is not None:
        return False
    return dims is None or options.get("dim", 1) in dims


def _fuse(gm, compare):
    graph = gm.graph
    for node in graph.find_nodes(op="call_method", target="sum"):
        product = node.args[0]
        dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
        if type(dim) is not int or set(node.kwargs) - {"dim"} or len(product.users) != 1:
            continue
        if product.target is not operator.mul or product.prev not in product.args or node.prev is not product:
            continue
        a, b = product.args
        dims = (dim,) if compare else None
        if not (_normalized(a, dims) and _normalized(b, dims)) or a.next is not b:
            continue
        with graph.inserting_before(node):
            score = graph.call_function(F.cosine_similarity, (a.args[0], b.args[0]), {"dim": dim, "eps": 1e-12})
        node.replace_all_uses_with(score)
        for old in (node, product, b, a):
            graph.erase_node(old)
    gm.recompile()
    return gm


@fault(
    24, wrong="The dimension that normalize works on (1 unless given) is not compared with the one that is summed over."
)
def cosine_scores(gm: torch.fx.GraphModule):
    """Fuse the product of two normalized values and its sum."""
    return _fuse(gm, compare=False)
