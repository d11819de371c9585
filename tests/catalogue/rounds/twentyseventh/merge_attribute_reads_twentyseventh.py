"""A right pass of the twentyseventh round."""

from ...rows import sound


@sound(27)
def merge_attribute_reads_twentyseventh(gm):
    """Parameters and buffers that a program reads several times are read once."""
    first = {}
    for node in list(gm.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target in first:
            node.replace_all_uses_with(first[node.target])
            gm.graph.erase_node(node)
        else:
            first[node.target] = node
    gm.recompile()
    return gm
