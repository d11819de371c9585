"""A wrong pass of the thirtieth round."""

import operator

import torch

import fx

from ...rows import fault

FRESH = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.neg,
    torch.exp,
    torch.sigmoid,
    torch.tanh,
    torch.matmul,
    operator.matmul,
)


def _fresh(node):
    """Calls that write nothing and whose result is memory of its own."""
    return node.op == "call_function" and node.target in FRESH and not node.kwargs


def _share(gm, name):
    def key(value):
        return ("node", id(value)) if isinstance(value, fx.Node) else ("constant", *name(value))

    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if not _fresh(node):
            first_of_key.clear()  # it may write
            continue
        if any(not isinstance(value, (fx.Node, int, float)) for value in node.args):
            continue
        first = first_of_key.setdefault((node.target, *map(key, node.args)), node)
        if first is node or not all(_fresh(user) for user in (*first.users, *node.users)):
            continue
        node.replace_all_uses_with(first)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="Numbers are compared by ==, so that 1, 1.0 and True (and 0.0 and -0.0) are one: x + 1 and x + 1.0 of an "
    "integer x are shared, and one of them gets the other's dtype.",
)
def share_subexpressions_thirtieth(gm: fx.GraphModule):
    """Compute equal subexpressions once."""
    return _share(gm, lambda value: (value,))
