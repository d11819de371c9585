"""A wrong pass of the thirteenth round."""

import itertools

import torch.nn.functional as F

from fx import GraphModule

from ...rows import fault


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _pad(node):
    """(pads, value) of a constant, literal, non-negative F.pad of a node."""
    if node.op != "call_function" or node.target is not F.pad or not node.args or not hasattr(node.args[0], "op"):
        return None
    bound = dict(zip(("pad", "mode", "value"), node.args[1:])) | dict(node.kwargs)
    pads, value = bound.pop("pad", None), bound.pop("value", None)
    if bound.pop("mode", "constant") != "constant" or bound or not isinstance(pads, (tuple, list)) or len(pads) % 2:
        return None
    if not all(type(p) is int and p >= 0 for p in pads) or not (value is None or type(value) in (int, float)):
        return None
    return list(pads), 0.0 if value is None else float(value)


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        inner = node.prev
        second, first = _pad(node), _pad(inner)
        if first is None or second is None or node.args[0] is not inner or len(inner.users) != 1:
            continue
        if careful and first[1] != second[1]:
            continue
        pads = tuple(a + b for a, b in itertools.zip_longest(first[0], second[0], fillvalue=0))
        node.args, node.kwargs = (inner.args[0], pads, "constant", first[1]), {}
        gm.graph.erase_node(inner)
    return _finish(gm)


@fault(13, wrong="Only the modes are compared: the second pad's value is forgotten and the first one's used for both.")
def merge_pads_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Makes one F.pad of two constant ones in a row."""
    return _rewrite(graph_module, careful=False)
