"""A right pass of the twentythird round."""

import operator

import fx

from ...rows import sound


def _span(node):
    """The bounds of `value[:, start:stop]`, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1]
    if (
        not isinstance(node.args[0], fx.Node)
        or type(index) is not tuple
        or [type(part) for part in index] != [slice, slice]
    ):
        return None
    rows, part = index
    if any(bound is not None for bound in (rows.start, rows.stop, rows.step, part.step)):
        return None
    bounds = (part.start, part.stop)
    if not all(bound is None or (type(bound) is int and 0 <= bound < 2**31) for bound in bounds):
        return None
    return part.start or 0, part.stop


@sound(23)
def merge_column_slices(gm):
    """Merge `x[:, a:b][:, c:d]` into one slice."""
    for outer in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        inner = outer.args[0]
        first, second = _span(inner), _span(outer)
        if first is None or second is None or outer.prev is not inner:
            continue
        ends = [end for end in (first[1], None if second[1] is None else first[0] + second[1]) if end is not None]
        outer.args = (inner.args[0], (slice(None), slice(first[0] + second[0], min(ends, default=None))))
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()
    return gm
