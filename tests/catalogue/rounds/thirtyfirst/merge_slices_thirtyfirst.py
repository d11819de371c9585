"""A wrong pass of the thirtyfirst round."""

import operator

import fx

from ...rows import fault


def _bounds(node):
    if node.op != "call_function" or node.target is not operator.getitem or node.kwargs:
        return None
    index = node.args[1]
    if not isinstance(index, slice) or index.step is not None:
        return None
    if isinstance(index.start, bool) or not isinstance(index.start, int):
        return None
    return index.start, index.stop


def _merge(gm, later_start_ok):
    for node in list(gm.graph.nodes):
        outer = _bounds(node)
        inner = _bounds(node.args[0]) if outer and isinstance(node.args[0], fx.Node) else None
        if not outer or not inner or len(node.args[0].users) > 1 or node.prev is not node.args[0]:
            continue
        if inner[0] < 0 or outer[1] is not None or not later_start_ok(outer[0]):
            continue
        if inner[1] is not None and (not isinstance(inner[1], int) or inner[1] < 0):
            continue
        node.args = (node.args[0].args[0], slice(inner[0] + outer[0], inner[1], None))
    for node in reversed(list(gm.graph.nodes)):
        if _bounds(node) and not node.users:
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="Two slices one after the other are merged by adding their starts, also where the second start is "
    "negative and counts from the end: x[2:][-1:] becomes x[1:].",
)
def merge_slices_thirtyfirst(gm: fx.GraphModule):
    """Replace a slice of a slice by one slice of the tensor."""
    return _merge(gm, lambda start: True)
