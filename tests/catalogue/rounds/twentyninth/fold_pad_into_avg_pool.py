"""A right pass of the twentyninth round."""

import torch.nn as nn
import torch.nn.functional as F

from ...rows import sound
from .shared import _HOOKS


def _layer(gm, node, kind):
    if getattr(node, "op", None) != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = gm.get_submodule(node.target)
    return module if type(module) is kind and not any(getattr(module, hooks, None) for hooks in _HOOKS) else None


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _padding(node):
    """(rows, columns) that F.pad adds at each side, as many zeros at both; else None."""
    if node.op != "call_function" or node.target is not F.pad or len(node.args) != 2:
        return None
    if node.kwargs.get("mode", "constant") != "constant" or node.kwargs.get("value") not in (None, 0):
        return None
    widths = node.args[1]
    if not isinstance(widths, (tuple, list)) or len(widths) != 4 or any(type(w) is not int or w < 0 for w in widths):
        return None
    left, right, top, bottom = widths
    return (top, left) if left == right and top == bottom else None


@sound(29)
def fold_pad_into_avg_pool(gm):
    """Fold an explicit padding by zeros into the average pooling after it."""
    for node in list(gm.graph.nodes):
        pool, padding = _layer(gm, node.next, nn.AvgPool2d), _padding(node)
        if pool is None or padding is None or list(node.users) != [node.next] or pool.ceil_mode:
            continue
        if _pair(pool.padding) != (0, 0) or not _layer(gm, node.args[0], nn.Conv2d):  # conv: it has pixels
            continue
        kernel = _pair(pool.kernel_size)
        if any(p > k // 2 for p, k in zip(padding, kernel)):
            continue
        after, name = node.next, f"{node.next.name}_padded"
        new = nn.AvgPool2d(kernel, _pair(pool.stride), padding, False, True, pool.divisor_override)
        gm.add_submodule(name, new.train(pool.training))
        after.target, after.args = name, (node.args[0],)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
