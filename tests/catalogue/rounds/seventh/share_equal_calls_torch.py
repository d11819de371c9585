"""A wrong pass of the seventh round."""

import operator
import re

import torch
import torch.fx

from ...rows import fault


def calm(module):
    """Return whether nothing in the program writes in place, switches a mode or hooks into a value."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            if not type(layer).__module__.startswith("torch.nn.") or getattr(layer, "inplace", False):
                return False
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            home = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
            if home not in ("torch", "_operator", "builtins", "math") and node.op == "call_function":
                return False
            if re.search(r"_$|^__i|^i(add|sub|mul|truediv|pow|or|and|xor)|setitem|grad|hook|autocast|backward", name):
                return False
            if "out" in node.kwargs or node.kwargs.get("inplace") or any(a is True for a in node.args):
                return False
    return True


FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.pow,
    operator.neg,
    torch.add,
    torch.mul,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.sum,
    torch.mean,
    torch.matmul,
    torch.softmax,
}


METHODS = {
    "add",
    "sub",
    "mul",
    "div",
    "exp",
    "tanh",
    "sigmoid",
    "relu",
    "sum",
    "mean",
    "matmul",
    "softmax",
    "pow",
    "abs",
}


def frozen(value):
    return tuple(frozen(part) for part in value) if isinstance(value, (list, tuple)) else value


def equal_key(node):
    return node.op, node.target, frozen(node.args), frozenset((name, frozen(node.kwargs[name])) for name in node.kwargs)


def rewrite(module, key_of):
    graph, first_of_key = module.graph, {}
    if not calm(module):
        return module
    for node in list(graph.nodes):
        if not (
            node.op == "call_function"
            and node.target in FUNCTIONS
            or node.op == "call_method"
            and node.target in METHODS
        ):
            continue
        if any(user.op == "output" for user in node.users):
            continue
        first = first_of_key.setdefault(key_of(node), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    7,
    wrong="Arguments are compared by ==, and 1, 1.0 and True are equal: x + 1 and x + 1.0 of integers have different types.",
)
def share_equal_calls(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Share calls of pure arithmetic and reductions that have the same arguments."""
    return rewrite(module, equal_key)
