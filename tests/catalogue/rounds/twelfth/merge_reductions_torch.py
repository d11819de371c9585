"""A wrong pass of the twelfth round."""

import torch

from ...rows import fault

KINDS = {"sum": "sum", torch.sum: "sum", "amax": "amax", torch.amax: "amax"}


def _reduction(node):
    if not isinstance(node, torch.fx.Node) or node.op not in ("call_method", "call_function"):
        return None
    kind = KINDS.get(node.target)
    arguments = dict(zip(("x", "dim", "keepdim"), node.args))
    if kind is None or len(node.args) > 3 or set(node.kwargs) - {"dim", "keepdim"}:
        return None
    arguments.update(node.kwargs)
    dim, keepdim = arguments.get("dim"), arguments.get("keepdim", False)
    if type(dim) is not int or type(keepdim) is not bool or not isinstance(arguments.get("x"), torch.fx.Node):
        return None
    return kind, arguments["x"], dim, keepdim


def _in_input(first, second):
    """Return the number that the second reduction's dimension has in the input of the first."""
    if first >= 0:
        return second + 1 if second >= first else second
    return second if second > first else second - 1


def _run(gm, adjust):
    for node in list(gm.graph.nodes):
        outer = _reduction(node)
        inner = _reduction(outer[1]) if outer else None
        if inner is None or inner[0] != outer[0] or inner[3] != outer[3] or len(outer[1].users) != 1:
            continue
        (kind, x, first, keepdim), second = inner, outer[2]
        if (first < 0) != (second < 0) or (first == second and (keepdim or first in (0, -1))):
            continue  # of a vector the second one reduces a scalar
        if adjust and not keepdim:
            second = _in_input(first, second)
        with gm.graph.inserting_before(outer[1]):
            merged = gm.graph.call_method(kind, (x, (first, second)), {"keepdim": keepdim})
        node.replace_all_uses_with(merged)
        gm.graph.erase_node(node)
        gm.graph.erase_node(outer[1])
    gm.recompile()
    return gm


@fault(
    12,
    wrong="Without keepdim the second dimension counts in the reduced tensor, and is taken over as one of the input.",
)
def merge_reductions(module):
    """Merge a sum of a sum, or a maximum of a maximum, over two dimensions into one reduction over both."""
    return _run(module, False)
