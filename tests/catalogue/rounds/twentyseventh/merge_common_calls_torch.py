"""A wrong pass of the twentyseventh round."""

import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import _hooked

PURE = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.matmul,
    torch.where,
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
)


def _pure(gm, node):
    """Return whether the node writes nothing and returns a new value."""
    if node.op == "call_module":
        layer = gm.get_submodule(node.target)
        return type(layer) is nn.Linear and not _hooked(layer)
    return node.op == "call_function" and node.target in PURE and "out" not in node.kwargs


def _merge(gm, constant):
    def key_of(node):
        values = (*node.args, *(value for _, value in sorted(node.kwargs.items())))
        if not all(isinstance(v, (torch.fx.Node, bool, int, float)) for v in values):
            return None
        parts = tuple(v if isinstance(v, torch.fx.Node) else constant(v) for v in values)
        return node.target, len(node.args), tuple(sorted(node.kwargs)), parts

    if not all(n.op in ("placeholder", "get_attr", "output") or _pure(gm, n) for n in gm.graph.nodes):
        return gm  # something may write in between
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not all(_pure(gm, user) for user in node.users):
            continue  # returned values must not share a tensor
        key = key_of(node)
        if key is None:
            continue
        if key in first_of_key:
            node.replace_all_uses_with(first_of_key[key])
            gm.graph.erase_node(node)
        else:
            first_of_key[key] = node
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(27, wrong="As parts of a key 1, 1.0 and True are equal, but they give results of other dtypes.")
def merge_common_calls(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Calls of pure functions with the same arguments are computed once."""
    return _merge(gm, lambda value: value)
