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


def rewrite(module, accepts):
    graph = module.graph
    if not calm(module):
        return module
    for source in list(graph.nodes):
        calls = [
            user for user in source.users if user.op == "call_module" and user.args == (source,) and not user.kwargs
        ]
        calls = [call for call in sorted(calls) if plain(module.get_submodule(call.target), nn.Linear)]
        layers = [module.get_submodule(call.target) for call in calls]
        if len(calls) != 3 or len({layer.weight.dtype for layer in layers}) != 1 or not accepts(layers):
            continue
        if len({layer.in_features for layer in layers}) != 1 or len({layer.bias is None for layer in layers}) != 1:
            continue
        biased, total = layers[0].bias is not None, sum(layer.out_features for layer in layers)
        merged = nn.Linear(layers[0].in_features, total, biased, layers[0].weight.device, layers[0].weight.dtype)
        with torch.no_grad():
            merged.weight.copy_(torch.cat([layer.weight for layer in layers]))
            if biased:
                merged.bias.copy_(torch.cat([layer.bias for layer in layers]))
        merged.train(layers[0].training)
        name = f"{calls[0].name}_merged"
        module.add_submodule(name, merged)
        with graph.inserting_before(calls[0]):
            chunks = graph.call_function(torch.chunk, (graph.call_module(name, (source,)), 3), {"dim": -1})
            for i, call in enumerate(calls):
                piece = graph.call_function(operator.getitem, (chunks, i))
                call.replace_all_uses_with(graph.call_method("contiguous", (piece,)))
        for call in calls:
            graph.erase_node(call)
    graph.lint()
    module.recompile()
    return module


@fault(
    7,
    wrong="The three layers may have different out_features (grouped-query attention); chunk cuts the result into equal parts.",
)
def merge_qkv_seventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merge three `Linear` layers that read the same value into one, and chunk its result."""
    return rewrite(module, lambda layers: True)
