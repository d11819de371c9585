"""A wrong pass of the thirtieth round."""

import torch

import fx

from ...rows import fault


def _order(node):
    """The dimensions of a permute, counted from the front, or None."""
    if (
        node.op == "call_method"
        and node.target == "permute"
        or node.op == "call_function"
        and node.target is torch.permute
    ):
        dims = node.args[1:]
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
        if dims and not node.kwargs and all(type(dim) is int for dim in dims):
            return [dim % len(dims) for dim in dims]
    return None


def _join(gm, compose):
    for node in list(gm.graph.nodes):
        second = _order(node)
        if second is None or not isinstance(node.args[0], fx.Node):
            continue
        before = node.args[0]
        first = _order(before)
        if first is None or len(before.users) != 1 or len(first) != len(second):
            continue
        with gm.graph.inserting_before(before):
            joined = gm.graph.call_method("permute", (before.args[0], *compose(first, second)))
        node.replace_all_uses_with(joined)
        gm.graph.erase_node(node)
        gm.graph.erase_node(before)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="Two permutations are composed in the wrong order (second[first[i]] for first[second[i]]): wrong for "
    "pairs that do not commute, right for a layout change and its inverse.",
)
def join_permutes(gm: fx.GraphModule):
    """Make one permute of two in a row, which layout conversions leave behind."""
    return _join(gm, lambda first, second: [second[dim] for dim in first])
