"""A wrong pass of the twentyfourth round."""

import operator

from ...rows import fault


def _slice(key):
    """The dimension and the bounds of a key that cuts one dimension, or None."""
    parts = key if isinstance(key, tuple) else (key,)
    *full, last = parts
    if any(part != slice(None) for part in full) or not isinstance(last, slice) or last.step not in (None, 1):
        return None
    start = 0 if last.start is None else last.start
    for bound in (start, last.stop):
        if bound is not None and (type(bound) is not int or bound < 0):
            return None
    return len(full), start, last.stop


def _merge(gm, clip):
    for outer in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        inner = outer.args[0]
        if inner.op != "call_function" or inner.target is not operator.getitem:
            continue
        first, second = _slice(inner.args[1]), _slice(outer.args[1])
        if first is None or second is None or first[0] != second[0]:
            continue
        dim, begin, end = first
        stop = end if second[2] is None else begin + second[2]
        if clip and end is not None and stop is not None:
            stop = min(stop, end)
        key = (*[slice(None)] * dim, slice(begin + second[1], stop))
        outer.args = (inner.args[0], key)
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The second slice may end behind the first one's end; the merged slice then reads elements that the first cut off.",
)
def merge_slices_twentyfourth(gm):
    """Read the part of a slice from the sliced value at once."""
    return _merge(gm, clip=False)
