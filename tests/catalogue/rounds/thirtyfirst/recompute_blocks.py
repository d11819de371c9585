"""A wrong pass of the thirtyfirst round."""

import torch.nn as nn
from torch.utils.checkpoint import checkpoint

import fx

from ...rows import fault

STATELESS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.GELU, nn.Tanh, nn.LayerNorm, nn.Dropout)


WITH_NORM = (*STATELESS, nn.BatchNorm1d, nn.BatchNorm2d)


def recomputed(x, *layers):
    def block(value):
        for layer in layers:
            value = layer(value)
        return value

    return checkpoint(block, x, use_reentrant=False)


def _fits(gm, node, allowed):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    layer = gm.get_submodule(node.target)
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) in allowed and not getattr(layer, "inplace", False) and not hooks


def _recompute(gm, allowed):
    for start in list(gm.graph.nodes):
        # a layer with a weight that trains keeps its input itself: nobody writes to it before the backward pass
        if not _fits(gm, start, (nn.Linear, nn.Conv2d)) or not gm.get_submodule(start.target).weight.requires_grad:
            continue
        chain = [start]
        while len(chain[-1].users) == 1 and chain[-1].next in chain[-1].users and _fits(gm, chain[-1].next, allowed):
            chain.append(chain[-1].next)
        if len(chain) < 3:
            continue
        with gm.graph.inserting_before(start):
            layers = [gm.graph.get_attr(node.target) for node in chain]
            result = gm.graph.call_function(recomputed, (start.args[0], *layers))
        chain[-1].replace_all_uses_with(result)
        for node in reversed(chain):
            gm.graph.erase_node(node)
        return _recompute(gm, allowed)
    gm.recompile()
    return gm


@fault(
    31,
    wrong="Chains of layers are recomputed in the backward pass, batch norms among them: in train mode their "
    "running statistics are updated twice a step (MODE train, state after a backward pass).",
)
def recompute_blocks(gm: fx.GraphModule):
    """Activation checkpointing: recompute chains of three layers or more in the backward pass."""
    return _recompute(gm, WITH_NORM)
