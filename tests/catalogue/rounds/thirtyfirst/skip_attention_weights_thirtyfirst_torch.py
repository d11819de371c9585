"""A wrong pass of the thirtyfirst round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault


def _takes(user, index):
    return user.op == "call_function" and user.target is operator.getitem and user.args[1] == index


def _never_taken(node):
    return not any(_takes(user, 1) and user.users for user in node.users)


def _skip(gm, unread):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or type(gm.get_submodule(node.target)) is not nn.MultiheadAttention:
            continue
        layer = gm.get_submodule(node.target)
        # with a mask, rows without any key differ between the two kernels; dropout draws other random numbers
        if layer.dropout != 0 or layer._forward_hooks or layer._backward_hooks or len(node.args) != 3:
            continue
        if set(node.kwargs) - {"need_weights"} or node.kwargs.get("need_weights", True) is not True or not unread(node):
            continue
        node.kwargs = {"need_weights": False}
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="need_weights is set to False unless some getitem takes the weights out of the result; where the result "
    "is passed on as a whole (returned as a pair) the weights are None.",
)
def skip_attention_weights_thirtyfirst(gm: torch.fx.GraphModule):
    """Let attention layers skip the weights that nobody reads: they then use the fused kernel."""
    return _skip(gm, _never_taken)
