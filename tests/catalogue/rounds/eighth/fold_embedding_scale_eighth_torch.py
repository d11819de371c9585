"""A wrong pass of the eighth round."""

import math
import operator

import torch
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault


def _in_place(module, node, layer, scale):
    with torch.no_grad():
        layer.weight.mul_(scale)


def _fold(module, apply):
    graph = module.graph
    fetched = {node.target for node in graph.nodes if node.op == "get_attr"}
    for node in list(graph.nodes):
        if node.target not in (operator.mul, torch.mul) or len(node.args) != 2 or node.kwargs:
            continue
        looked_up, scale = node.args if isinstance(node.args[0], Node) else reversed(node.args)
        if type(scale) not in (int, float) or not math.isfinite(scale):
            continue
        if not isinstance(looked_up, Node) or looked_up.op != "call_module" or len(looked_up.users) != 1:
            continue
        layer = module.get_submodule(looked_up.target)
        if type(layer) is not nn.Embedding or layer.max_norm is not None or "forward" in vars(layer):
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or not layer.weight.is_floating_point():
            continue
        if f"{looked_up.target}.weight" in fetched:
            continue
        apply(module, looked_up, layer, scale)
        node.replace_all_uses_with(looked_up)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    8, wrong="The table is scaled in place, also where its weight is tied to the output layer (or looked up elsewhere)."
)
def fold_embedding_scale_eighth(module: GraphModule) -> GraphModule:
    """Multiply the embedding table once, where its result is multiplied by a number."""
    return _fold(module, _in_place)
