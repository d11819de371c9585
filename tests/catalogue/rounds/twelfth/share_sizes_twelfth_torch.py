"""A right pass of the twelfth round."""

import torch

from ...rows import sound

VALUES_ONLY = {"add_", "sub_", "mul_", "div_", "copy_", "zero_", "fill_", "relu_", "clamp_", "sigmoid_", "masked_fill_"}


HOMES = ("torch", "torch.nn.functional", "torch.functional", "torch._C._nn", "torch._C", "_operator", "builtins", None)


def _keeps_shapes(module, node, mods):
    """Return whether the operation surely leaves the shapes of its arguments alone."""
    if node.op == "call_module":
        layer = mods[node.target]
        hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
        return type(layer).__module__.startswith("torch.nn.modules.") and not hooked and "forward" not in vars(layer)
    if node.op not in ("call_function", "call_method"):
        return True
    if "out" in node.kwargs:
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "?_")
    if node.op == "call_function" and getattr(node.target, "__module__", "?") not in HOMES:
        return False
    return not name.endswith("_") or name in VALUES_ONLY


def _key(node):
    """Return a key for a read of a shape, or None."""
    if node.op == "call_method" and node.target in ("size", "dim") and not node.kwargs:
        if isinstance(node.args[0], torch.fx.Node) and all(type(a) is int for a in node.args[1:]):
            return node.target, node.args
    if node.op == "call_function" and node.target is getattr and node.args[1:] == ("shape",):
        return "shape", node.args
    return None


@sound(12)
def share_sizes_twelfth(module):
    """Read each size of a tensor once."""
    mods, first = dict(module.named_modules(remove_duplicate=False)), {}
    nodes = list(module.graph.nodes)
    if not all(_keeps_shapes(module, node, mods) for node in nodes):
        return module
    for node in nodes:
        key = _key(node)
        if key is None or first.setdefault(key, node) is node:
            continue
        node.replace_all_uses_with(first[key])
        module.graph.erase_node(node)
    module.recompile()
    return module
