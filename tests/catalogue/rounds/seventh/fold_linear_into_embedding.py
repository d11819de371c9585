"""A wrong pass of the seventh round."""

import re

import torch
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


def rewrite(module, accepts):
    if not calm(module):
        return module
    for node in list(module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        below = node.args[0]
        if below.op != "call_module" or len(below.args) != 1 or below.kwargs:
            continue
        linear, table = module.get_submodule(node.target), module.get_submodule(below.target)
        if not plain(linear, nn.Linear) or not plain(table, nn.Embedding) or not accepts(module, table):
            continue
        if linear.in_features != table.embedding_dim or linear.weight.dtype != table.weight.dtype:
            continue
        with torch.no_grad():
            rows = table.weight.double() @ linear.weight.double().t()
            if linear.bias is not None:
                rows = rows + linear.bias.double()
        name = f"{node.name}_table"
        module.add_submodule(name, nn.Embedding.from_pretrained(rows.to(linear.weight.dtype), freeze=False))
        node.target, node.args = name, below.args
        if not below.users:
            module.graph.erase_node(below)
    module.recompile()
    return module


@fault(
    7,
    wrong="An embedding with max_norm shortens its rows when they are looked up; the folded table has them at full length.",
)
def fold_linear_into_embedding(module: fx.GraphModule) -> fx.GraphModule:
    """Fold a `Linear` that reads an `Embedding` into the table: every row is projected beforehand (factorized embeddings)."""
    return rewrite(module, lambda gm, table: True)
