"""A pass of the twelfth round that was meant to be right."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault

POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def _plain(m):
    hooked = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return not hooked and "forward" not in vars(m)


def _is_relu(node, mods):
    if (
        len(node.args) != 1
        or not isinstance(node.args[0], torch.fx.Node)
        or node.kwargs not in ({}, {"inplace": False})
    ):
        return False
    if node.op == "call_module":
        layer = mods[node.target]
        return type(layer) is nn.ReLU and not layer.inplace and _plain(layer)
    return node.target in (torch.relu, F.relu) or (node.op == "call_method" and node.target == "relu")


def _is_pool(node, mods):
    layer = mods[node.target] if node.op == "call_module" else None
    if type(layer) not in POOLS or not _plain(layer) or layer.return_indices or len(node.args) != 1 or node.kwargs:
        return False
    dilation = layer.dilation if isinstance(layer.dilation, tuple) else (layer.dilation,)
    return set(dilation) == {1}  # a dilated window can lie in the padding alone


@fault(
    12,
    "gradients",
    "gradients",
    wrong="The pool saves its input for the gradient, to which the program may write later; relu saves none.",
)
def pool_before_relu(module):
    """Apply a ReLU after the max pool that follows it, where there is less to compute."""
    graph, mods = module.graph, dict(module.named_modules(remove_duplicate=False))
    for pool in list(graph.nodes):
        if not _is_pool(pool, mods):
            continue
        relu = pool.args[0]
        if not isinstance(relu, torch.fx.Node) or pool.prev is not relu or set(relu.users) != {pool}:
            continue
        if relu.op not in ("call_module", "call_function", "call_method") or not _is_relu(relu, mods):
            continue
        pool.args = (relu.args[0],)
        with graph.inserting_after(pool):
            later = graph.create_node(relu.op, relu.target, (pool,), relu.kwargs)
        pool.replace_all_uses_with(later, delete_user_cb=lambda user: user is not later)
        graph.erase_node(relu)
    module.recompile()
    return module
