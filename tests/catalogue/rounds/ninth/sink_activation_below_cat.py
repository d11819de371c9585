"""A wrong pass of the ninth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault

_ACTIVATIONS = {
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    F.relu,
    F.gelu,
    F.leaky_relu,
    F.elu,
    F.hardtanh,
    F.silu,
    F.softplus,
}


_LAYERS = {nn.Linear, nn.Conv1d, nn.Conv2d}


_WRITES = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow}


def _writes(module):
    for node in module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
        if node.op in ("call_method", "call_function") and (
            node.target in _WRITES
            or name.endswith("_")
            or "out" in node.kwargs
            or node.kwargs.get("inplace")
            or any(arg is True for arg in node.args)
            or name.startswith("__i")
        ):
            return True
        if node.op == "call_module" and any(
            getattr(m, "inplace", False) for m in module.get_submodule(node.target).modules()
        ):
            return True
    return False


def _dtype(module, node):
    """That of the layer whose result it is: the only values whose dtype is known."""
    layer = module.get_submodule(node.target) if node.op == "call_module" else None
    return layer.weight.dtype if type(layer) in _LAYERS and not layer._forward_hooks else None


def _run(module, right):
    graph = module.graph
    if _writes(module):
        return module
    for cat in list(graph.nodes):
        if cat.op != "call_function" or cat.target is not torch.cat or not cat.args:
            continue
        parts = cat.args[0]
        if not isinstance(parts, (list, tuple)) or len(parts) < 2 or len(set(parts)) < len(parts):
            continue
        if not all(isinstance(p, fx.Node) and p.op == "call_function" and p.target in _ACTIVATIONS for p in parts):
            continue
        first = parts[0]
        if not all(p.args and isinstance(p.args[0], fx.Node) and list(p.users) == [cat] for p in parts):
            continue
        if any(p.target is not first.target or p.args[1:] != first.args[1:] for p in parts):
            continue
        if right and any(dict(p.kwargs) != dict(first.kwargs) for p in parts):
            continue
        dtypes = {_dtype(module, p.args[0]) for p in parts}
        if len(dtypes) > 1 or None in dtypes or first.all_input_nodes != [first.args[0]]:
            continue
        cat.args = ([p.args[0] for p in parts], *cat.args[1:])
        with graph.inserting_after(cat):
            new = graph.call_function(first.target, (cat, *first.args[1:]), dict(first.kwargs))
        cat.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        for p in parts:
            graph.erase_node(p)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Compares function and positional arguments of the activations but not the keywords, where slopes are recorded.",
)
def sink_activation_below_cat(module: fx.GraphModule) -> fx.GraphModule:
    """Apply an activation once behind the concatenation instead of in every branch."""
    return _run(module, False)
