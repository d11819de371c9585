"""A wrong pass of the thirteenth round."""

import torch
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish


def _dims(node):
    """The order of a permute with literal dimensions, counted from zero."""
    if node.kwargs or not (node.op == "call_method" and node.target == "permute" or node.target is torch.permute):
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    if not dims or not all(type(d) is int and -len(dims) <= d < len(dims) for d in dims):
        return None
    dims = [d % len(dims) for d in dims]
    return dims if sorted(dims) == list(range(len(dims))) else None


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        inner = node.args[0] if node.args and hasattr(node.args[0], "op") else None
        if inner is None or node.op == "output" or len(inner.users) != 1:
            continue
        first, second = _dims(inner), _dims(node)
        if first is None or second is None or len(first) != len(second):
            continue
        order = tuple(first[d] for d in second) if careful else tuple(second[d] for d in first)
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(torch.permute, (inner.args[0], order))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        gm.graph.erase_node(inner)
    return finish(gm)


@fault(13, wrong="The two orders are composed the wrong way round, which only shows where they do not commute.")
def compose_permutes_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Makes one permute of two in a row, as a layout pass leaves them."""
    return _rewrite(graph_module, careful=False)
