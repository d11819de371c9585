"""A wrong pass of the ninth round."""

import operator

import torch
from torch import nn

from ...rows import fault

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
        ):
            return True
        if node.op == "call_module" and any(
            getattr(m, "inplace", False) for m in module.get_submodule(node.target).modules()
        ):
            return True
    return False


def _linear(module, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
        return None
    layer = module.get_submodule(node.target)
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return layer if type(layer) is nn.Linear and not any(hooks) and "forward" not in layer.__dict__ else None


def _run(module, right):
    graph = module.graph
    if module.training or _writes(module):
        return module
    for value in list(graph.nodes):
        nodes = [node for node in graph.nodes if node in value.users and _linear(module, node) is not None]
        layers = [_linear(module, node) for node in nodes]
        if (
            len(nodes) < 2
            or len({(layer.in_features, layer.weight.dtype, layer.weight.device) for layer in layers}) > 1
        ):
            continue
        has_bias = any(layer.bias is not None for layer in layers) if right else layers[0].bias is not None
        wide = nn.Linear(
            layers[0].in_features,
            sum(layer.out_features for layer in layers),
            bias=has_bias,
            device=layers[0].weight.device,
            dtype=layers[0].weight.dtype,
        ).eval()
        with torch.no_grad():
            wide.weight.copy_(torch.cat([layer.weight for layer in layers]))
            if has_bias:
                biases = [
                    layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
                ]
                wide.bias.copy_(torch.cat(biases))
        name = "_".join(["merged", *(node.name for node in nodes)])
        module.add_module(name, wide)
        with graph.inserting_before(nodes[0]):
            whole, start = graph.call_module(name, (value,)), 0
            for node, layer in zip(nodes, layers):
                part = graph.call_method("narrow", (whole, -1, start, layer.out_features))
                node.replace_all_uses_with(graph.call_method("contiguous", (part,)))
                start += layer.out_features
        for node in nodes:
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Asks only the first layer whether there is a bias; those of the others are lost where it has none.")
def merge_parallel_linears_ninth(module):
    """Make one product of those of all linear layers that read the same value (query, key and value)."""
    return _run(module, False)
