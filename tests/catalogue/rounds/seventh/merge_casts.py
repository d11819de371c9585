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


CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}


def cast_to(node):
    """The dtype that a node casts to, if it does nothing else."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return CASTS.get(node.target) if len(node.args) == 1 else None


def rewrite(module, skips):
    if not calm(module):
        return module
    for node in list(module.graph.nodes):
        last = cast_to(node)
        first = last and cast_to(node.args[0])
        if not first:
            continue
        below = node.args[0]
        if first == last:
            node.replace_all_uses_with(below)
            module.graph.erase_node(node)
        elif skips(first, last):
            node.args = (below.args[0], *node.args[1:])
            if not below.users:
                module.graph.erase_node(below)
    module.recompile()
    return module


@fault(
    7,
    wrong="The first of two floating casts may be to the narrower type, which rounds; skipping it keeps digits that eager drops.",
)
def merge_casts(module: fx.GraphModule) -> fx.GraphModule:
    """Merge consecutive casts of a tensor: the first one is skipped."""
    return rewrite(module, lambda first, last: first.is_floating_point and last.is_floating_point)
