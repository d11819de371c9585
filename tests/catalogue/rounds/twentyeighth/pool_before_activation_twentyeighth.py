"""A wrong pass of the twentyeighth round."""

import torch

import fx

from ...rows import fault
from .shared import plain

ACTIVATIONS = (torch.nn.ReLU, torch.nn.GELU, torch.nn.SiLU)


def swap(gm, kinds):
    for pool in list(gm.graph.nodes):
        if not plain(gm, pool, torch.nn.MaxPool2d):
            continue
        act = pool.args[0]
        if not isinstance(act, fx.Node) or not plain(gm, act, *kinds) or len(act.users) != 1:
            continue
        if getattr(gm.get_submodule(act.target), "inplace", False):
            continue
        options = gm.get_submodule(pool.target)
        if options.return_indices or options.padding not in (0, (0, 0)) or options.dilation not in (1, (1, 1)):
            continue
        with gm.graph.inserting_before(act):
            pooled = gm.graph.call_module(pool.target, act.args)
            moved = gm.graph.call_module(act.target, (pooled,))
        pool.replace_all_uses_with(moved)
        gm.graph.erase_node(pool)
        gm.graph.erase_node(act)
    gm.recompile()
    return gm


@fault(28, wrong="Takes GELU and SiLU for monotone, which they are not below zero.")
def pool_before_activation_twentyeighth(gm):
    """Moves activations behind the max pool that follows them, where there is less to activate."""
    return swap(gm, ACTIVATIONS)
