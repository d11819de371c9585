"""A wrong pass of the twelfth round."""

import fx

from ...rows import fault


def _in_place(node):
    return any(user.op == "call_method" and user.target.endswith("_") for user in node.users)


def _run(module, neutral):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "expand" or node.kwargs:
            continue
        x, *sizes = node.args
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = list(sizes[0])
        if not sizes or not all(type(size) is int and size in neutral for size in sizes):
            continue
        if _in_place(x) or _in_place(node):
            continue
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(12, wrong="A size of 1 counts as no change, but in front of the tensor's own dimensions it adds one.")
def eliminate_nop_expand(module: fx.GraphModule) -> fx.GraphModule:
    """Drop calls of expand that leave every size as it is."""
    return _run(module, (-1, 1))
