"""A wrong pass of the seventh round."""

import copy
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
    if not calm(module):
        return module
    for node in list(module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        if not isinstance(node.args[0], torch.fx.Node) or node.args[0].op != "call_module":
            continue
        before = node.args[0]
        conv, norm = module.get_submodule(node.target), module.get_submodule(before.target)
        if not plain(conv, nn.Conv2d) or not plain(norm, nn.BatchNorm2d) or len(before.args) != 1:
            continue
        if norm.training or conv.training or norm.running_mean is None or len(before.users) > 1 or conv.groups != 1:
            continue
        if conv.in_channels != norm.num_features or not accepts(conv):
            continue
        with torch.no_grad():
            scale = (norm.running_var.double() + norm.eps).rsqrt()
            if norm.weight is not None:
                scale = scale * norm.weight
            shift = -norm.running_mean.double() * scale
            if norm.bias is not None:
                shift = shift + norm.bias
            weight = conv.weight.double()
            bias = weight.sum((2, 3)) @ shift
            if conv.bias is not None:
                bias = bias + conv.bias
            folded = copy.deepcopy(conv)
            folded.weight = nn.Parameter((weight * scale.reshape(1, -1, 1, 1)).to(conv.weight.dtype))
            folded.bias = nn.Parameter(bias.to(conv.weight.dtype))
        name = f"{node.name}_normed"
        module.add_submodule(name, folded)
        node.target, node.args = name, before.args
        module.graph.erase_node(before)
    module.recompile()
    return module


@fault(
    7,
    wrong="The convolution may pad with zeros; the shift, now in the bias, then reaches the border as if the padding had been shifted too.",
)
def fold_norm_into_next_conv_seventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold an evaluated `BatchNorm2d` into the `Conv2d` that reads it (pre-activation nets): scale into the weight, shift into the bias."""
    return rewrite(module, lambda conv: True)
