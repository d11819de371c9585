"""A wrong pass of the twentythird round."""

import operator

import torch
import torch.fx

from ...rows import fault


def _span(node):
    """The bounds of `value[:, start:stop]`, or None."""
    if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], tuple):
        return None
    if len(node.args[1]) != 2 or not all(isinstance(part, slice) for part in node.args[1]):
        return None
    rows, part = node.args[1]
    if (rows.start, rows.stop, rows.step, part.step) != (None, None, None, None):
        return None
    start = 0 if part.start is None else part.start
    if type(start) is not int or start < 0 or not (part.stop is None or (type(part.stop) is int and part.stop >= 0)):
        return None
    return start, part.stop


def _rewrite(gm, end):
    for outer in list(gm.graph.nodes):
        inner = outer.args[0] if outer.args else None
        if (
            _span(outer) is None
            or not isinstance(inner, torch.fx.Node)
            or outer.prev is not inner
            or _span(inner) is None
        ):
            continue
        (a, b), (c, d) = _span(inner), _span(outer)
        outer.args = (inner.args[0], (slice(None), slice(a + c, end(a, b, d))))
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="The end of the second slice is not clipped at the end of the first, past which the first one shows nothing.",
)
def merge_slices_twentythird(gm: torch.fx.GraphModule):
    """Merge two slices in a row along the same dimension: `x[:, a:b][:, c:d]` is one view of `x`."""
    return _rewrite(gm, lambda a, b, d: b if d is None else a + d)
