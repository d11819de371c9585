"""A wrong pass of the twentythird round."""

import operator

import torch
import torch.fx

from ...rows import fault

_PURE = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg,
    torch.add, torch.sub, torch.mul, torch.relu, torch.sigmoid, torch.tanh, torch.exp,
}  # fmt: skip


def _may_write(gm, node):
    if node.op == "call_module" and getattr(gm.get_submodule(node.target), "inplace", False):
        return True
    if node.op == "call_method" and node.target.endswith("_"):
        return True
    if node.op == "call_function" and node.target is torch._C._set_grad_enabled:
        return True
    return "out" in node.kwargs or bool(node.kwargs.get("inplace")) or any(value is True for value in node.args)


def _rewrite(gm, key_of):
    if any(_may_write(gm, node) for node in gm.graph.nodes):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in _PURE or any(user.op == "output" for user in node.users):
            continue
        try:
            first = first_of_key.setdefault(key_of(node), node)
        except TypeError:  # an argument that has no hash
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _key(node):
    return node.target, node.args, tuple(sorted(node.kwargs.items()))


@fault(
    23,
    wrong="Arguments are compared by `==`, for which 1, 1.0 and True are one number, though they promote integers differently.",
)
def merge_equal_nodes(gm: torch.fx.GraphModule):
    """Common subexpressions: compute equal element-wise operations once. Programs with writes in place are left alone."""
    return _rewrite(gm, _key)
