"""A right pass of the thirtieth round."""

import fx

from ...rows import sound


def _literal_view(node):
    if node.op != "call_method" or node.target != "view" or node.kwargs or len(node.args) < 2:
        return False
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    return all(type(size) is int for size in sizes)


def _size_view(node):
    """A view by sizes, not by dtype: literal, or at least two."""
    return _literal_view(node) or (
        node.op == "call_method" and node.target == "view" and not node.kwargs and len(node.args) > 2
    )


@sound(30)
def join_views(gm: fx.GraphModule):
    """Make one view of two in a row."""
    for node in list(gm.graph.nodes):
        if not _literal_view(node):
            continue
        first = node.args[0]
        if not isinstance(first, fx.Node) or not _size_view(first) or len(first.users) != 1:
            continue
        with gm.graph.inserting_before(first):
            joined = gm.graph.call_method("view", (first.args[0], *node.args[1:]))
        node.replace_all_uses_with(joined)
        gm.graph.erase_node(node)
        gm.graph.erase_node(first)
    gm.graph.lint()
    gm.recompile()
    return gm
