"""A wrong pass of the twentythird round."""

import torch.nn.functional as F

import fx

from ...rows import fault


def _rewrite(gm, refuses):
    for pool in gm.graph.find_nodes(op="call_function", target=F.max_pool2d):
        pad = pool.args[0] if pool.args else None
        if not isinstance(pad, fx.Node) or pad.target is not F.pad or len(pad.args) != 2 or list(pad.users) != [pool]:
            continue
        if pad.kwargs.get("mode", "constant") != "constant" or pad.kwargs.get("value") not in (None, 0, 0.0):
            continue
        sides, side = pad.args[1], pad.args[1][0]
        size = pool.args[1] if len(pool.args) == 2 else pool.kwargs.get("kernel_size")
        if len(sides) != 4 or len(set(sides)) != 1 or type(side) is not int or side <= 0 or pool.prev is not pad:
            continue
        if type(size) is not int or side > size // 2 or len(pool.args) > 2 or pool.kwargs.get("padding", 0) != 0:
            continue
        if pool.kwargs.get("ceil_mode") or pool.kwargs.get("return_indices") or pool.kwargs.get("dilation", 1) != 1:
            continue
        if refuses(pad.args[0]):
            continue
        pool.args = (pad.args[0], *pool.args[1:])
        pool.kwargs = {**pool.kwargs, "padding": side}
        gm.graph.erase_node(pad)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="A max pooling pads with minus infinity, not with zero: windows at the border that hold only negative values differ.",
)
def pad_into_max_pool(gm):
    """Fold a zero padding before a max pooling into the pooling's own padding (models converted from other frameworks)."""
    return _rewrite(gm, lambda value: False)
