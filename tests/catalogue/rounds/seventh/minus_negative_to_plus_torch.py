"""A right pass of the seventh round."""

import operator
import re

import torch
import torch.fx

from ...rows import sound


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


def rule(minus, negative, plus):
    return lambda x, y: minus(x, negative(y)), lambda x, y: plus(x, y)


RULES = [
    rule(minus, negative, plus)
    for minus, plus in ((operator.sub, operator.add), (torch.sub, torch.add))
    for negative in (operator.neg, torch.neg)
]


def tensors(match, original, pattern):
    """Only where both operands are values of the program; booleans and sizes are numbers there, too, with equal sums."""
    return all(isinstance(node, torch.fx.Node) for node in match.placeholder_nodes)


@sound(7, fault="For unsigned integers, -y wraps before the difference is computed in a wider type.")
def minus_negative_to_plus(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace `x - (-y)` by `x + y`, in all spellings of functions."""
    if not calm(module):
        return module
    for pattern, replacement in RULES:
        torch.fx.subgraph_rewriter.replace_pattern_with_filters(module, pattern, replacement, [tensors])
    return module
