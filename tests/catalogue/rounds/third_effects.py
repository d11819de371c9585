"""Passes of the third round that drop, move or share what a program does."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

POINTWISE = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sqrt,
    torch.neg,
    torch.abs,
    torch.pow,
    torch.maximum,
    torch.minimum,
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.pow,
}


IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem"}


def writes(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
            return True
        if node.op == "call_function":
            name = getattr(node.target, "__name__", "")
            if name in IN_PLACE or name.endswith("_") or "out" in node.kwargs:
                return True
            if node.kwargs.get("inplace") or any(arg is True for arg in node.args):
                return True
        if node.op == "call_module" and getattr(graph_module.get_submodule(node.target), "inplace", False):
            return True
    return False


def only_feeds_pointwise(node):
    return all(user.op == "call_function" and user.target in POINTWISE for user in node.users)


@fault(
    3,
    "dtype",
    "dtype",
    "contract",
    wrong="Arguments are compared with ==, so x * 2 and x * 2.0 (or x + 1 and x + True) count as one expression "
    "though their dtypes differ.",
)
def share_repeated_calls(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute each pointwise expression once.

    Skips graphs that write in place, and values that escape (so that no two outputs become one tensor)."""
    if writes(graph_module):
        return graph_module
    first_of_key = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in POINTWISE or not only_feeds_pointwise(node):
            continue
        key = (node.target, node.args, tuple(sorted(node.kwargs.items())))
        try:
            first = first_of_key.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


RELU = {torch.relu, F.relu}


FRESH_FUNCTIONS = {operator.add, operator.sub, torch.add, torch.sub, F.linear}


FRESH_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d)


# what may read the operand earlier: these keep nothing of it for the backward pass
FORGETFUL_METHODS = {"view", "flatten", "transpose", "size", "dim", "sum", "mean"}


FORGETFUL_FUNCTIONS = {operator.add, operator.sub, torch.add, torch.sub, torch.flatten, torch.transpose}


def is_fresh(graph_module, node):
    if node.op == "call_function":
        return node.target in FRESH_FUNCTIONS
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    return type(module) in FRESH_MODULES and not module._forward_hooks


def relu_operand(graph_module, node):
    """Return the operand of a ReLU (function, method or module) that is out of place, else None."""
    if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        plain = type(module) is nn.ReLU and not module._forward_hooks and not module._forward_pre_hooks
        return node.args[0] if plain and not module.inplace else None
    if node.op == "call_method":
        return node.args[0] if node.target == "relu" else None
    return node.args[0] if node.op == "call_function" and node.target in RELU else None


def write_into(graph, node, operand):
    with graph.inserting_before(node):
        rectified = graph.call_function(torch.relu_, (operand,))
    node.replace_all_uses_with(rectified)
    graph.erase_node(node)


def forgetful(node):
    if node.op == "call_method":
        return node.target in FORGETFUL_METHODS
    return node.op == "call_function" and node.target in FORGETFUL_FUNCTIONS


@fault(
    3,
    "in-place on a value still needed",
    "contract",
    "gradients",
    "aliasing",
    wrong="A view of the operand that was taken earlier may be read after the ReLU, and shares its memory.",
)
def reuse_for_relu(graph_module: fx.GraphModule) -> fx.GraphModule:
    """relu(x) becomes relu_(x) where x is a new tensor of this graph whose last reader is the relu, and no earlier
    reader saved it for gradients."""
    order = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    for node in list(order):
        operand = relu_operand(graph_module, node)
        if operand is None or not is_fresh(graph_module, operand):
            continue
        others = [user for user in operand.users if user is not node]
        if all(order[user] < order[node] and forgetful(user) for user in others):
            write_into(graph_module.graph, node, operand)
    graph_module.recompile()
    return graph_module


PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.abs,
    torch.sqrt,
    torch.mean,
    torch.sum,
    torch.matmul,
}


WRITERS = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem", "delitem"}


def is_write(node):
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        if name in WRITERS or name.endswith("_") or "out" in node.kwargs or node.kwargs.get("inplace"):
            return True
        return any(arg is True for arg in node.args)
    return False


def sink(graph_module, is_barrier):
    for node in reversed(list(graph_module.graph.nodes)):
        if node.op != "call_function" or node.target not in PURE or "out" in node.kwargs or not node.users:
            continue
        step, crossed = node.next, False
        while step not in node.users:
            crossed = crossed or is_barrier(step)
            step = step.next
        if not crossed and step is not node.next:
            step.prepend(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    3,
    "effect moved",
    "contract",
    "state",
    wrong="A module writes too: nn.ReLU(inplace=True) (or a batch norm in training) between a value and its first use.",
)
def sink_to_readers(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Move pure calls down to their first user, unless something in between writes in place."""
    return sink(graph_module, is_write)
