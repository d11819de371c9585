"""A wrong pass of the eighth round."""

import operator

import torch
from torch import nn
from torch.fx import GraphModule

from ...rows import fault


def _may_write(module):
    for node in module.graph.nodes:
        if node.op == "call_module":
            for inner in module.get_submodule(node.target).modules():
                trusted = type(inner).__module__.startswith("torch.nn.")
                hooked = inner._forward_hooks or inner._forward_pre_hooks
                if not trusted or hooked or getattr(inner, "inplace", False):
                    return True
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            origin = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
            positional = (
                origin == "torch"
                and node.op == "call_function"
                and True in [a for a in node.args if isinstance(a, bool)]
            )
            if name.split(".")[0].endswith("_") or name.startswith("_") or name == "setitem" or positional:
                return True
            if (
                "out" in node.kwargs
                or node.kwargs.get("inplace")
                or origin not in ("torch", "_operator", "math", "builtins")
            ):
                return True
            if origin == "_operator" and name[0] == "i" and name not in ("invert", "index"):
                return True
    return False


def _merge(module, divide):
    graph, groups = module.graph, {}
    if _may_write(module):
        return module
    for node in graph.nodes:
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            layer = module.get_submodule(node.target)
            if type(layer) is nn.Linear and "forward" not in vars(layer):
                weight = layer.weight
                key = (node.args[0], weight.dtype, weight.device, weight.requires_grad, layer.bias is None)
                groups.setdefault(key, []).append((node, layer))
    for number, ((value, dtype, device, trained, plain), calls) in enumerate(groups.items()):
        if len(calls) < 2 or not isinstance(value, torch.fx.Node):
            continue
        layers = [layer for _, layer in calls]
        widths = [layer.out_features for layer in layers]
        merged = nn.Linear(layers[0].in_features, sum(widths), not plain, device, dtype)
        with torch.no_grad():
            merged.weight.copy_(torch.cat([layer.weight for layer in layers]))
            if not plain:
                merged.bias.copy_(torch.cat([layer.bias for layer in layers]))
        merged.requires_grad_(trained).train(layers[0].training)
        module.add_submodule(f"merged_projection_{number}", merged)
        with graph.inserting_before(calls[0][0]):
            whole = graph.call_module(f"merged_projection_{number}", (value,))
            parts = divide(graph, whole, widths)
            for index, (node, _) in enumerate(calls):
                part = graph.call_function(operator.getitem, (parts, index))
                node.replace_all_uses_with(graph.call_method("contiguous", (part,)))
        for node, _ in calls:
            graph.erase_node(node)
    module.recompile()
    return module


@fault(
    8,
    wrong="The merged result is divided into equal chunks, but the projections may have different widths (grouped-query attention).",
)
def merge_qkv_linears(module: GraphModule) -> GraphModule:
    """Compute all linear layers that read the same value (query, key, value) by one, and divide its result."""
    return _merge(module, lambda graph, whole, widths: graph.call_method("chunk", (whole, len(widths)), {"dim": -1}))
