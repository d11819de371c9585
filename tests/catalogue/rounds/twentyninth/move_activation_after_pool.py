"""A wrong pass of the twentyninth round."""

import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _plain(gm, node, kinds):
    """Return whether the node calls a module of exactly these types, without hooks, on one positional input."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    module = gm.get_submodule(node.target)
    return type(module) in kinds and not any(getattr(module, hooks, None) for hooks in _HOOKS)


def _move(gm, kinds):
    for act in list(gm.graph.nodes):
        if not _plain(gm, act, kinds) or getattr(gm.get_submodule(act.target), "inplace", False):
            continue
        pool = act.next
        if list(act.users) != [pool] or not _plain(gm, pool, {nn.MaxPool2d}):
            continue
        if gm.get_submodule(pool.target).return_indices:
            continue
        source = act.args[0]
        pool.replace_all_uses_with(act)
        pool.args = (source,)
        pool.append(act)
        act.args = (pool,)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="Takes every activation for monotone; max(f(x)) is not f(max(x)) for GELU, SiLU and Hardswish, which dip below zero.",
)
def move_activation_after_pool(gm):
    """Run an activation after the max pooling that follows it, on a quarter of the elements."""
    return _move(gm, {nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish})
