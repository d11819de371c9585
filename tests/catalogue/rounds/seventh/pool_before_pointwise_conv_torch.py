"""A wrong pass of the seventh round."""

import re

import torch
import torch.fx
from torch import nn

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


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


def rewrite(module, accepts):
    graph = module.graph
    if not calm(module):
        return module
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        if not isinstance(node.args[0], torch.fx.Node) or node.args[0].op != "call_module":
            continue
        below = node.args[0]
        pool, conv = module.get_submodule(node.target), module.get_submodule(below.target)
        if not plain(pool, nn.AvgPool2d) or not plain(conv, nn.Conv2d):
            continue
        if len(below.users) != 1 or len(below.args) != 1 or below.kwargs:
            continue
        if conv.kernel_size != (1, 1) or conv.stride != (1, 1) or conv.padding != (0, 0):
            continue
        if pool.padding not in (0, (0, 0)) or not accepts(pool):
            continue
        with graph.inserting_before(node):
            smaller = graph.call_module(node.target, (below.args[0],))
            result = graph.call_module(below.target, (smaller,))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(below)
    graph.lint()
    module.recompile()
    return module


@fault(
    7,
    wrong="The pool may have a divisor_override; it is then no average, and the bias of the convolution is no longer scaled by it.",
)
def pool_before_pointwise_conv(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Pool first and convolve after, where a pointwise `Conv2d` is followed by an `AvgPool2d` (DenseNet's transitions): both are linear, and the convolution gets fewer pixels."""
    return rewrite(module, lambda pool: True)
