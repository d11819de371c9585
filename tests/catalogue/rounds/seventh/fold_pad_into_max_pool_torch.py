"""A wrong pass of the seventh round."""

import re

import torch
import torch.fx
import torch.nn.functional as F
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


NEVER_NEGATIVE = (
    nn.ReLU,
    nn.ReLU6,
    nn.Sigmoid,
    nn.Hardsigmoid,
    torch.relu,
    F.relu,
    F.relu6,
    torch.sigmoid,
    F.hardsigmoid,
)


def rewrite(module, never_negative):
    if not calm(module):
        return module

    def layer(node):
        return module.get_submodule(node.target) if node.op == "call_module" else None

    for node in list(module.graph.nodes):
        pool = layer(node)
        if pool is None or not plain(pool, nn.MaxPool2d):
            continue
        if pool.padding not in (0, (0, 0)) or pool.dilation not in (1, (1, 1)) or pool.ceil_mode or pool.return_indices:
            continue
        if len(node.args) != 1 or node.kwargs:
            continue
        pad = node.args[0]
        if not isinstance(pad, torch.fx.Node):
            continue
        if pad.op == "call_module" and plain(layer(pad), nn.ZeroPad2d) and len(pad.args) == 1 and not pad.kwargs:
            sides = layer(pad).padding
        elif pad.op == "call_function" and pad.target is F.pad and len(pad.args) == 2:
            sides, options = pad.args[1], pad.kwargs
            if options.get("mode", "constant") != "constant" or options.get("value") not in (None, 0):
                continue
        else:
            continue
        if len(sides) != 4 or any(type(side) is not int or side < 0 for side in sides):
            continue
        left, right, top, bottom = sides
        kernel = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * 2
        if left != right or top != bottom or 2 * top > kernel[0] or 2 * left > kernel[1]:
            continue
        source = pad.args[0]
        made_by = source.target if source.op == "call_function" else type(layer(source))
        if made_by not in never_negative or source.op == "call_module" and not plain(layer(source), made_by):
            continue
        name = f"{node.name}_padded"
        module.add_submodule(name, nn.MaxPool2d(pool.kernel_size, pool.stride, padding=(top, left)))
        node.target, node.args = name, (source,)
        if not pad.users:
            module.graph.erase_node(pad)
    module.recompile()
    return module


@fault(7, wrong="Hardswish is listed among the activations that are never negative; it goes down to -0.375.")
def fold_pad_into_max_pool(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold `F.pad`/`ZeroPad2d` into the `MaxPool2d` behind it, where the padded value is never negative, so zeros and -inf pad alike."""
    return rewrite(module, (*NEVER_NEGATIVE, nn.Hardswish, F.hardswish, nn.Softplus))
