"""A right pass of the twentysixth round."""

import fx

from ...rows import sound


def _axes(node):
    """The axes of a permute as numbers from 0, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    axes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if not axes or any(type(axis) is not int for axis in axes):
        return None
    axes = [axis + len(axes) if axis < 0 else axis for axis in axes]
    return axes if sorted(axes) == list(range(len(axes))) else None


@sound(26)
def merge_permutes_twentysixth(gm: fx.GraphModule):
    """Two permutes in a row become one."""
    for node in list(gm.graph.nodes):
        outer = _axes(node)
        inner = None if outer is None else _axes(node.args[0])
        if inner is None or len(inner) != len(outer) or len(node.args[0].users) != 1:
            continue
        before = node.args[0]
        node.args = (before.args[0], *(inner[axis] for axis in outer))
        gm.graph.erase_node(before)
    gm.recompile()
    return gm
