"""A wrong pass of the fifteenth round."""

import copy
import operator

from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import plain


def swaps(node):
    return (
        isinstance(node, Node)
        and node.op == "call_method"
        and node.target == "permute"
        and not node.kwargs
        and (node.args[1:] == (1, 0, 2))
    )


@fault(
    15,
    wrong="The LSTM may be called at another place too, where nothing is permuted, and its batch_first is turned there as well.",
)
def fold_permute_into_lstm(graph_module: GraphModule) -> GraphModule:
    """Give an LSTM between two ``permute(1, 0, 2)`` the other ``batch_first`` and drop the permutes."""
    for node in list(graph_module.graph.nodes):
        lstm = plain(graph_module, node, nn.LSTM)
        if lstm is None or not swaps(node.args[0]) or len(node.args[0].users) != 1:
            continue
        parts = list(node.users)
        if not all(part.target is operator.getitem and part.args[1] in (0, 1) for part in parts):
            continue
        swapped = [user for part in parts if part.args[1] == 0 for user in part.users]
        if not swapped or not all(swaps(user) for user in swapped):
            continue
        turned = copy.copy(lstm)
        turned.batch_first = not lstm.batch_first
        parent, _, name = node.target.rpartition(".")
        setattr(graph_module.get_submodule(parent), name, turned)
        before = node.args[0]
        node.args = (before.args[0],)
        graph_module.graph.erase_node(before)
        for user in swapped:
            user.replace_all_uses_with(user.args[0])
            graph_module.graph.erase_node(user)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
