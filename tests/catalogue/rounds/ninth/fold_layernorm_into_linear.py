"""A wrong pass of the ninth round."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault


def _layer(module, node, kind):
    """The layer that a node calls with one argument, if it is just that."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = module.get_submodule(node.target)
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return None if type(layer) is not kind or any(hooks) or "forward" in layer.__dict__ else layer


def _run(module, right):
    graph = module.graph
    for node in list(graph.nodes):
        linear = _layer(module, node, nn.Linear)
        norm_node = node.args[0] if linear is not None else None
        norm = _layer(module, norm_node, nn.LayerNorm)
        if norm is None or norm.training or norm.weight is None or list(norm_node.users) != [node]:
            continue
        if tuple(norm.normalized_shape) != (linear.in_features,) or norm.weight.dtype != linear.weight.dtype:
            continue
        new = copy.deepcopy(linear)
        with torch.no_grad():
            new.weight.mul_(norm.weight)
            if norm.bias is not None:
                shift = linear.weight @ norm.bias
                if new.bias is not None:
                    new.bias.add_(shift)
                elif right:
                    new.bias = nn.Parameter(shift)
        name = f"{node.name}_with_norm"
        module.add_module(name, new)
        with graph.inserting_before(norm_node):
            plain = graph.call_function(
                F.layer_norm, (norm_node.args[0], tuple(norm.normalized_shape)), {"eps": norm.eps}
            )
        with graph.inserting_before(node):
            folded = graph.call_module(name, (plain,))
        node.replace_all_uses_with(folded)
        graph.erase_node(node)
        graph.erase_node(norm_node)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Forgets the shift of the normalization where the linear layer has no bias that it could be added to.")
def fold_layernorm_into_linear(module: fx.GraphModule) -> fx.GraphModule:
    """Fold scale and shift of a layer norm into the linear layer behind it, for inference."""
    return _run(module, False)
