"""A wrong pass of the thirteenth round."""

import operator

import torch
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish

KINDS = (torch.zeros_like, torch.ones_like)


READERS = (operator.add, operator.sub, operator.mul, torch.add, torch.mul, torch.cat)


def _only_read(node) -> bool:
    return all(
        user.op == "call_function" and user.target in READERS and "out" not in user.kwargs for user in node.users
    )


def _keeps_shape(node) -> bool:
    """Return whether nothing changes the tensor's own shape, as squeeze_ or t_ do."""
    for user in node.users:
        if user.op == "call_method" and user.args[0] is node and user.target.endswith("_"):
            return False
        if (
            user.op == "call_module"
            or user.op == "call_function"
            and getattr(user.target, "__name__", "_").endswith("_")
        ):
            return False
    return True


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in KINDS or len(node.args) != 1 or node.kwargs:
            continue
        if not hasattr(node.args[0], "op") or not _keeps_shape(node.args[0]):
            continue
        if careful and not _only_read(node):
            continue
        first = first_of_key.setdefault((node.target, node.args[0]), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    return finish(gm)


@fault(
    13,
    wrong="An allocation that the program writes to in place is shared all the same, so that what is meant for one shows in the other.",
)
def share_allocations(graph_module: GraphModule) -> GraphModule:
    """Makes one allocation of several zeros_like or ones_like calls on the same tensor."""
    return _rewrite(graph_module, careful=False)
