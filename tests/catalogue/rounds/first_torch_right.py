"""Right passes of the first round that are written for torch.fx."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import sound

# What may go when nobody reads it: calls that compute and neither write, draw random numbers nor check anything.
_FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sum,
    torch.mean,
    torch.transpose,
    torch.permute,
    torch.flatten,
    torch.softmax,
    F.gelu,
    F.softmax,
    F.log_softmax,
    F.linear,
}


_METHODS = {
    "add",
    "sub",
    "mul",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "sum",
    "mean",
    "transpose",
    "permute",
    "flatten",
    "softmax",
    "size",
    "dim",
    "float",
    "half",
    "unsqueeze",
    "contiguous",
    "clone",
    "detach",
}


_MODULES = (nn.Linear, nn.Conv2d, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Softmax, nn.AvgPool2d, nn.Flatten, nn.LayerNorm)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _removable(node, modules):
    if node.users:
        return False
    if node.op == "get_attr":
        return True
    if node.op == "call_function":
        return node.target in _FUNCTIONS and node.kwargs.get("out") is None
    if node.op == "call_method":
        return node.target in _METHODS
    if node.op == "call_module":
        module = modules[node.target]
        return type(module) in _MODULES and not any(getattr(module, name) for name in _HOOKS)
    return False


class PruneDeadValues(PassBase):
    def call(self, graph_module):
        modules = dict(graph_module.named_modules(remove_duplicate=False))
        modified = False
        for node in reversed(list(graph_module.graph.nodes)):
            if _removable(node, modules):
                graph_module.graph.erase_node(node)
                modified = True
        if modified:
            graph_module.recompile()
        return PassResult(graph_module, modified)


@sound(1)
def prune_dead_values(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Removes what nobody reads and what is known to have no effect; everything unknown stays."""
    return PruneDeadValues()(graph_module).graph_module


def _reads_one(node, size):
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and node.args[0] is size
        and not node.kwargs
        and type(node.args[1]) is int
    )


@sound(1)
def narrow_sizes(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`x.size()[i]`, or `b, c = x.size()`, asks for the sizes one by one: `x.size(i)`, which backends with integers
    but without tuples of them can take."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "size" or len(node.args) != 1 or node.kwargs:
            continue
        size_of_index = {}
        for user in list(node.users):
            if not _reads_one(user, node):
                continue
            index = user.args[1]
            if index not in size_of_index:
                # Here, and not where the element is read: by then x may have been reshaped in place.
                with graph.inserting_before(node):
                    size_of_index[index] = graph.call_method("size", (node.args[0], index))
            user.replace_all_uses_with(size_of_index[index])
            graph.erase_node(user)
        if size_of_index and not node.users:
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module
