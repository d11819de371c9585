"""A wrong pass of the twentyseventh round."""

import torch
import torch.fx

from ...rows import fault
from .shared import _hooked

METHODS = {"relu_": "relu", "sigmoid_": "sigmoid", "tanh_": "tanh", "neg_": "neg", "abs_": "abs", "exp_": "exp"}


def _is_local(gm, node):
    """Return whether the program computes the value: writes to inputs, parameters and buffers must stay."""
    if node.op == "call_module":
        return not _hooked(gm.get_submodule(node.target))
    return node.op in ("call_function", "call_method") and not node.kwargs


def _functionalize(gm, may_change):
    order = {node: index for index, node in enumerate(gm.graph.nodes)}
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target not in METHODS or len(node.args) != 1 or node.kwargs:
            continue
        receiver = node.args[0]
        if not may_change(gm, receiver) or any(order[user] < order[node] for user in receiver.users):
            continue  # an earlier reader may have made a view, which would see the write
        with gm.graph.inserting_before(node):
            result = gm.graph.call_method(METHODS[node.target], (receiver,))
        order[result] = order[node]
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        receiver.replace_all_uses_with(result, delete_user_cb=lambda user, result=result: user is not result)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    27,
    wrong="What is written to may be a view or another alias: its base is not changed any more, though others read that.",
)
def functionalize_inplace(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """In-place activations become out-of-place ones, since the compiler behind this cannot handle mutation."""
    return _functionalize(gm, _is_local)
