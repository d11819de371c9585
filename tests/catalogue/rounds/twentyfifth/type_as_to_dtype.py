"""A right pass of the twentyfifth round."""

from ...rows import sound


@sound(25)
def type_as_to_dtype(gm):
    """Write type_as as a cast to the other tensor's dtype and device, which exporters know."""
    graph = gm.graph
    for node in list(graph.find_nodes(op="call_method", target="type_as")):
        if len(node.args) != 2 or node.kwargs:
            continue
        x, other = node.args
        with graph.inserting_before(node):
            wanted = {name: graph.call_function(getattr, (other, name)) for name in ("dtype", "device")}
            cast = graph.call_method("to", (x,), wanted)
        node.replace_all_uses_with(cast)
        graph.erase_node(node)
    gm.recompile()
    return gm
