"""A wrong pass of the thirtieth round."""

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _arg


def _pair(value):
    if isinstance(value, int):
        return (value, value)
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return tuple(value)
    return None


def _absorb(gm, counts):
    for pool in list(gm.graph.nodes):
        pad = _arg(pool, 0, "input")
        if pool.op != "call_function" or pool.target is not F.avg_pool2d or not isinstance(pad, fx.Node):
            continue
        if pad.op != "call_function" or pad.target is not F.pad or len(pad.users) != 1 or pad.next is not pool:
            continue
        amounts, value = _arg(pad, 1, "pad"), _arg(pad, 3, "value")
        if _arg(pad, 2, "mode", "constant") != "constant" or not (value is None or value == 0):
            continue
        if not isinstance(amounts, (tuple, list)) or len(amounts) != 4 or not all(isinstance(a, int) for a in amounts):
            continue
        left, right, top, bottom = amounts
        kernel, own = _pair(_arg(pool, 1, "kernel_size")), _pair(_arg(pool, 3, "padding", 0))
        if left != right or top != bottom or min(amounts) < 0 or max(amounts) == 0 or own != (0, 0) or kernel is None:
            continue
        if top > kernel[0] // 2 or left > kernel[1] // 2:
            continue
        if _arg(pool, 4, "ceil_mode", False) is not False or _arg(pool, 6, "divisor_override") is not None:
            continue
        stride, include = _arg(pool, 2, "stride"), _arg(pool, 5, "count_include_pad", True)
        pool.args = (_arg(pad, 0, "input"), kernel, stride or kernel, (top, left), False, counts(include))
        pool.kwargs = {}
        gm.graph.erase_node(pad)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The explicit zeros of F.pad counted in the average, but the pass keeps count_include_pad=False of the "
    "pool, which meant nothing while the pool had no padding of its own: wrong at the borders of programs "
    "that pad, then pool with count_include_pad=False.",
)
def absorb_pad_in_average(gm: fx.GraphModule):
    """Let average pooling do the zero padding before it, so that the padded image is never written."""
    return _absorb(gm, lambda include: include)
