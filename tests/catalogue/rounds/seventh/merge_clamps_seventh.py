"""A wrong pass of the seventh round."""

import re

import torch

import fx

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


def clamp(node):
    """Return the operand of a clamp and its bounds if each is a float or absent, else None."""
    if not isinstance(node, fx.Node):
        return None
    if (node.op, node.target) not in (("call_method", "clamp"), ("call_function", torch.clamp)):
        return None
    arguments = dict(zip(("input", "min", "max"), node.args)) | dict(node.kwargs)
    bounds = arguments.get("min"), arguments.get("max")
    return (arguments.get("input"), *bounds) if all(b is None or type(b) is float and b == b for b in bounds) else None


def rewrite(module, accepts):
    if not calm(module):
        return module
    for node in list(module.graph.nodes):
        outer = clamp(node)
        inner = outer and clamp(outer[0])
        if not inner:
            continue
        lows = [bound for bound in (inner[1], outer[1]) if bound is not None]
        highs = [bound for bound in (inner[2], outer[2]) if bound is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        if not accepts(low, high):
            continue
        below = outer[0]
        with module.graph.inserting_before(node):
            merged = module.graph.call_function(torch.clamp, (inner[0],), {"min": low, "max": high})
        node.replace_all_uses_with(merged)
        module.graph.erase_node(node)
        if not below.users:
            module.graph.erase_node(below)
    module.recompile()
    return module


@fault(
    7,
    wrong="The two ranges may not overlap; the merged minimum is then above the maximum, and clamp gives the maximum, not the outer range's nearer end.",
)
def merge_clamps_seventh(module: fx.GraphModule) -> fx.GraphModule:
    """Merge consecutive clamps with constant bounds: the larger minimum and the smaller maximum."""
    return rewrite(module, lambda low, high: True)
