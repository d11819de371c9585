"""A wrong pass of the twentythird round."""

import math
import operator

import torch
import torch.fx

from ...rows import fault

_FLOAT = (torch.nn.LayerNorm, torch.nn.Linear, torch.nn.GELU)


def _layer(gm, node):
    return gm.get_submodule(node.target) if node.op == "call_module" else None


def _plain(layer):
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    frozen = not any(parameter.requires_grad for parameter in layer.parameters())
    return type(layer) is torch.nn.Linear and frozen and not any(hooks)


def _rewrite(gm, refuses):
    for call in list(gm.graph.nodes):
        layer = _layer(gm, call)
        if layer is None or not _plain(layer) or len(call.args) != 1 or call.kwargs:
            continue
        scaled = call.args[0]
        if scaled.target not in (operator.mul, torch.mul) or len(scaled.args) != 2 or len(scaled.users) > 1:
            continue
        value, factor = scaled.args
        if type(factor) is not float or factor == 0 or not math.isfinite(factor) or call.prev is not scaled:
            continue
        if not isinstance(value, torch.fx.Node) or type(_layer(gm, value)) not in _FLOAT:
            continue
        if any(n.op == "get_attr" and n.target.startswith(call.target + ".") for n in gm.graph.nodes) or refuses(
            gm, call
        ):
            continue
        folded = torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None).requires_grad_(False)
        folded.weight.data = layer.weight.data * factor
        if layer.bias is not None:
            folded.bias = layer.bias
        gm.set_submodule(call.target, folded.train(layer.training))
        call.args = (value,)
        gm.graph.erase_node(scaled)
    gm.recompile()
    return gm


@fault(23, wrong="The layer is replaced under its name although another place calls the same layer without the factor.")
def fold_input_scale(gm: torch.fx.GraphModule):
    """Fold a constant factor before a frozen `nn.Linear` into its weight (attention and patch heads scale before they project)."""
    return _rewrite(gm, lambda gm, call: False)
