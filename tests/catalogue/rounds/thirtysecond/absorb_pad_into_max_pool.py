"""A wrong pass of the thirtysecond round."""

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import argument, calls, has_writes, replace


@fault(
    32,
    wrong="Max pooling pads with -inf, the pad operation with 0. Shows in a model that pads and pools values that are negative at the border (no ReLU before the pool); after a ReLU it is right.",
)
def absorb_pad_into_max_pool(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Use the padding argument of max_pool2d for a symmetric zero padding in front of it."""
    if has_writes(graph_module):
        return graph_module
    for pool in list(graph_module.graph.nodes):
        if not calls(pool, (F.max_pool2d,)) or not pool.args:
            continue
        pad = pool.args[0]
        if not calls(pad, (F.pad,)) or len(pad.users) != 1 or len(pad.args) < 2:
            continue
        widths = pad.args[1]
        if not isinstance(widths, (tuple, list)) or len(widths) != 4 or not all(type(width) is int for width in widths):
            continue
        at_left, right, top, bottom = widths
        if at_left != right or top != bottom or at_left < 0 or top < 0:
            continue
        if argument(pad, 2, "mode", "constant") != "constant" or argument(pad, 3, "value") not in (None, 0):
            continue
        kernel = argument(pool, 1, "kernel_size")
        stride = argument(pool, 2, "stride")
        padding = argument(pool, 3, "padding", 0)
        dilation = argument(pool, 4, "dilation", 1)
        ceil_mode = argument(pool, 5, "ceil_mode", False)
        indices = argument(pool, 6, "return_indices", False)
        if padding not in (0, (0, 0), [0, 0]) or dilation not in (1, (1, 1), [1, 1]) or ceil_mode or indices:
            continue
        sizes = (kernel, kernel) if type(kernel) is int else kernel
        if not isinstance(sizes, (tuple, list)) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
            continue
        if 2 * top > sizes[0] or 2 * at_left > sizes[1]:
            continue
        with graph_module.graph.inserting_before(pool):
            merged = graph_module.graph.call_function(
                F.max_pool2d, (pad.args[0], kernel), {"stride": stride, "padding": (top, at_left)}
            )
        replace(pool, merged)
        graph_module.graph.erase_node(pad)
    graph_module.recompile()
    return graph_module
