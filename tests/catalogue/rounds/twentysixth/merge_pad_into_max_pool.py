"""A wrong pass of the twentysixth round."""

from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _merge(gm, accepted):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or node.args[0].op != "call_module":
            continue
        before = node.args[0]
        pool, pad = gm.get_submodule(node.target), gm.get_submodule(before.target)
        if type(pool) is not nn.MaxPool2d or type(pad) is not nn.ZeroPad2d or _hooked(pool) or _hooked(pad):
            continue
        if len(before.users) != 1 or len(before.args) != 1 or before.kwargs or not accepted(gm, before.args[0]):
            continue
        if _pair(pool.padding) != (0, 0) or _pair(pool.dilation) != (1, 1) or pool.ceil_mode or pool.return_indices:
            continue
        left, right, top, bottom = pad.padding
        height, width = _pair(pool.kernel_size)
        if left != right or top != bottom or not (0 <= top <= height // 2 and 0 <= left <= width // 2):
            continue
        name = node.target.replace(".", "_") + "_padded"
        while hasattr(gm, name):
            name += "_"
        gm.add_submodule(name, nn.MaxPool2d(pool.kernel_size, pool.stride, padding=(top, left)))
        with gm.graph.inserting_before(before):
            merged = gm.graph.call_module(name, before.args)
        node.replace_all_uses_with(merged)
        gm.graph.erase_node(node)
        gm.graph.erase_node(before)
    gm.recompile()
    return gm


@fault(
    26,
    wrong="A max pool pads with minus infinity, so the zeros of the pad count where the windows at the border are negative.",
)
def merge_pad_into_max_pool(gm: fx.GraphModule):
    """Merge an explicit zero padding, as imported models have it, into the max pool behind it."""
    return _merge(gm, lambda gm, node: isinstance(node, fx.Node))
