"""A wrong pass of the fourteenth round."""

import operator

import torch.nn.functional as F

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish, follows


def _method(node, name):
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == name


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv or node.kwargs:
            continue
        value, length = node.args
        chain, eps = [node], None
        if _method(length, "clamp_min") and len(length.args) == 2 and type(length.args[1]) is float:
            chain.append(length)
            eps, length = length.args[1], length.args[0]
        if eps is None:
            if careful:
                continue
            eps = 1e-12
        if not _method(length, "norm") or len(length.args) != 1 or length.args[0] is not value:
            continue
        if (
            set(length.kwargs) not in ({"dim", "keepdim"}, {"p", "dim", "keepdim"})
            or length.kwargs["keepdim"] is not True
        ):
            continue
        dim, p = length.kwargs["dim"], length.kwargs.get("p", 2)
        chain.append(length)
        if type(dim) is not int or type(p) not in (int, float) or p != 2:
            continue
        if any(len(inner.users) != 1 for inner in chain[1:]):
            continue
        if not all(follows(later, earlier) for later, earlier in zip(chain, chain[1:])):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(F.normalize, (value,), {"dim": dim, "eps": eps})
        node.replace_all_uses_with(new)
        for dead in chain:
            graph.erase_node(dead)
    return finish(graph_module)


@fault(14, wrong="normalize bounds the norm from below: rows of zeros (padding) give 0 there and NaN in the program.")
def use_normalize(graph_module: GraphModule) -> GraphModule:
    """Replace x / x.norm(dim=d, keepdim=True), with or without clamp_min, by F.normalize."""
    return _rewrite(graph_module, False)
