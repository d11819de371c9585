"""Helpers shared by the passes of the fourteenth round share."""


def follows(later, earlier):
    """Nothing but reads of attributes stands between the two nodes."""
    node = later.prev
    while node.op == "get_attr":
        node = node.prev
    return node is earlier


def finish(graph_module):
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
