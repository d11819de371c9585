"""A right pass of the twentyfifth round."""

from ...rows import sound


def is_size(argument):
    if isinstance(argument, (list, tuple)):
        return all(map(is_size, argument))
    return type(argument) is int


@sound(25)
def view_to_reshape(gm):
    """Replace view by reshape, so that later passes may change layouts without breaking views."""
    for node in gm.graph.find_nodes(op="call_method", target="view"):
        # view(dtype) is another operation
        if len(node.args) > 1 and not node.kwargs and all(map(is_size, node.args[1:])):
            node.target = "reshape"
    gm.recompile()
    return gm
