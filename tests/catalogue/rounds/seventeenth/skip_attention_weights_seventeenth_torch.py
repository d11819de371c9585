"""A wrong pass of the seventeenth round."""

import operator

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import has_hooks


def _only_reads_output(node: Node, careful: bool) -> bool:
    users = list(node.users) if careful else list(node.users)[:1]
    return bool(users) and all(
        user.op == "call_function" and user.target is operator.getitem and user.args[1] == 0 and user.args[0] is node
        for user in users
    )


def _skip(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in graph_module.graph.nodes:
        if node.op != "call_module" or len(node.args) != 3 or node.kwargs:
            continue  # masks stay with the implementation that computes weights
        module = graph_module.get_submodule(node.target)
        if type(module) is not nn.MultiheadAttention or has_hooks(module) or has_hooks(module.out_proj):
            continue
        if module.training or module.dropout or not _only_reads_output(node, careful):
            continue
        node.kwargs = {"need_weights": False}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="Only the first user of the attention's result is looked at; another one reads the weights.")
def skip_attention_weights_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Ask attention for no weights where only its output is used, which lets it take the fused kernel."""
    return _skip(graph_module, careful=False)
