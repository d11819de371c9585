"""A right pass of the thirtieth round."""

import operator

import fx

from ...rows import sound


def _shape_of(node):
    """The tensor whose whole shape a node reads, or None."""
    if node.op == "call_function" and node.target is getattr and len(node.args) == 2 and node.args[1] == "shape":
        source = node.args[0]
    elif node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs:
        source = node.args[0]
    else:
        return None
    return source if isinstance(source, fx.Node) and source.op != "get_attr" else None


@sound(30)
def read_one_extent(gm: fx.GraphModule):
    """Read single extents as x.size(i), and not through the whole shape."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or type(node.args[1]) is not int:
            continue
        shape, place = node.args
        tensor = _shape_of(shape) if isinstance(shape, fx.Node) else None
        if tensor is None:
            continue
        with gm.graph.inserting_before(shape):
            extent = gm.graph.call_method("size", (tensor, place))
        node.replace_all_uses_with(extent)
        gm.graph.erase_node(node)
        if not shape.users:
            gm.graph.erase_node(shape)
    gm.graph.lint()
    gm.recompile()
    return gm
