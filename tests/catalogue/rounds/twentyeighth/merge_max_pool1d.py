"""A right pass of the twentyeighth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import sound
from .shared import plain


def number(value):
    return value[0] if isinstance(value, tuple) else value


def simple(pool):
    return number(pool.padding) == 0 and number(pool.dilation) == 1 and not pool.ceil_mode and not pool.return_indices


@sound(28)
def merge_max_pool1d(gm):
    """Merges two one-dimensional max pools that follow each other into one with a wider window."""
    for node in list(gm.graph.nodes):
        if not plain(gm, node, torch.nn.MaxPool1d) or not isinstance(node.args[0], fx.Node):
            continue
        before = node.args[0]
        if not plain(gm, before, torch.nn.MaxPool1d) or len(before.users) != 1:
            continue
        first, second = gm.get_submodule(before.target), gm.get_submodule(node.target)
        if not simple(first) or not simple(second) or number(first.stride) != number(first.kernel_size):
            continue
        wide = number(first.kernel_size) * number(second.kernel_size)
        step = number(first.stride) * number(second.stride)
        with gm.graph.inserting_before(before):
            merged = gm.graph.call_function(F.max_pool1d, (before.args[0], wide, step))
        node.replace_all_uses_with(merged)
        gm.graph.erase_node(node)
        gm.graph.erase_node(before)
    gm.recompile()
    return gm
