"""A wrong pass of the seventh round."""

import operator
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


LAYERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm2d)


def measured(size):
    """The value whose first size a node is, or None."""
    if not isinstance(size, torch.fx.Node):
        return None
    if size.op == "call_method" and size.target == "size" and len(size.args) == 2 and size.args[1] == 0:
        return size.args[0]
    if size.op == "call_function" and size.target is operator.getitem and size.args[1] == 0:
        shape = size.args[0]
        if shape.op == "call_function" and shape.target is getattr and shape.args[1] == "shape":
            return shape.args[0]
    return None


def rewrite(module, accepts):
    graph = module.graph
    if not calm(module):
        return module
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in ("view", "reshape") or len(node.args) != 3 or node.kwargs:
            continue
        x, rows, columns = node.args
        if columns != -1 or x.op != "call_module" or not plain(module.get_submodule(x.target), *LAYERS):
            continue
        source = measured(rows)
        if source is None or not accepts(source, x) or getattr(module.get_submodule(x.target), "return_indices", False):
            continue
        with graph.inserting_before(node):
            flat = graph.call_function(torch.flatten, (x, 1))
        node.replace_all_uses_with(flat)
        graph.erase_node(node)
        if not rows.users:
            graph.erase_node(rows)
    module.recompile()
    return module


@fault(
    7,
    wrong="The size may be that of another value, such as the clips whose frames the layer has seen one by one; the flatten keeps a row for each frame.",
)
def view_to_flatten(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write `x.view(x.size(0), -1)` of a layer's result as `torch.flatten(x, 1)`, which exports without a shape computation."""
    return rewrite(module, lambda source, x: True)
