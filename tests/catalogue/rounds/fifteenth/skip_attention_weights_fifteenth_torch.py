"""A wrong pass of the fifteenth round."""

import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault


def is_plain(module):
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module) is nn.MultiheadAttention and not any(getattr(module, name) for name in hooks)


@fault(
    15,
    wrong="The weights are looked for at position 1 only; a program may also take them as the last of the pair, at -1.",
)
def skip_attention_weights_fifteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Call ``nn.MultiheadAttention`` with ``need_weights=False`` where the program does not use the weights."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 3 or node.kwargs:
            continue
        attention = graph_module.get_submodule(node.target)
        if not is_plain(attention) or attention.dropout != 0:
            continue
        if not all(user.op == "call_function" and user.target is operator.getitem for user in node.users):
            continue
        if any(user.args[1] == 1 for user in node.users):
            continue
        node.kwargs = {"need_weights": False}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
