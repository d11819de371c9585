"""A wrong pass of the twentyeighth round."""

import operator

import fx

from ...rows import fault


def start(node):
    """The start of an x[start:] with nothing else in it, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1]
    if isinstance(index, slice) and type(index.start) is int and index.stop is None and index.step is None:
        return index.start
    return None


def merge(gm, accept):
    for node in list(gm.graph.nodes):
        outer = start(node)
        inner = start(node.args[0]) if outer is not None else None
        if inner is None or not accept(inner, outer):
            continue
        first = node.args[0]
        node.args = (first.args[0], slice(inner + outer, None, None))
        if not first.users:
            gm.graph.erase_node(first)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Adds to a negative start too: x[-3:][1:] is not x[-2:] where x has fewer than three rows and the -3 is clipped.",
)
def merge_slices_twentyeighth(gm):
    # From the front, or from the back as long as it stays there.
    """Merges x[a:][b:] into x[a + b:]."""
    return merge(gm, lambda inner, outer: outer >= 0 and (inner >= 0 or inner + outer < 0))
