"""A wrong pass of the seventh round."""

import re

import torch
import torch.nn.functional as F
from torch import nn

import fx

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


def squeezed(node):
    """The dimension that a node squeezes, `"all"` without one, None for other nodes."""
    if (node.op, node.target) not in (("call_method", "squeeze"), ("call_function", torch.squeeze)):
        return None
    arguments = dict(zip(("input", "dim"), node.args)) | dict(node.kwargs)
    return arguments.get("dim", "all")


def pooled(module, node):
    """Return the operand of a pool to 1x1, or None."""
    if node.op == "call_function" and node.target is F.adaptive_avg_pool2d and len(node.args) == 2:
        size, source = node.args[1], node.args[0]
    elif node.op == "call_module" and plain(module.get_submodule(node.target), nn.AdaptiveAvgPool2d) and node.args:
        size, source = module.get_submodule(node.target).output_size, node.args[0]
    else:
        return None
    return source if size == 1 or size == (1, 1) or size == [1, 1] else None


def rewrite(module, everything):
    graph = module.graph
    if not calm(module):
        return module
    for node in list(graph.nodes):
        dim = squeezed(node)
        if dim is None or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        below, chain = node.args[0], [node]
        if dim == -1 and squeezed(below) == -1 and len(below.users) == 1 and below.args:
            chain.append(below)
            below = below.args[0]
        elif not (everything and dim == "all") and dim not in ((-1, -2), (-2, -1)):
            continue
        source = pooled(module, below)
        if source is None or len(below.users) != 1:
            continue
        with graph.inserting_before(node):
            mean = graph.call_function(torch.mean, (source, (-2, -1)))
        node.replace_all_uses_with(mean)
        for old in (*chain, below):
            graph.erase_node(old)
    module.recompile()
    return module


@fault(7, wrong="A squeeze without a dimension counts too; it also drops the batch of one image (or a single channel).")
def fuse_pool_and_squeeze(module: fx.GraphModule) -> fx.GraphModule:
    """Write adaptive average pooling to 1x1 and the squeezing of the two last dimensions as `torch.mean(x, (-2, -1))`."""
    return rewrite(module, everything=True)
