"""A right pass of the thirteenth round."""

import torch

from fx import GraphModule

from ...rows import sound


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


READERS = (torch.relu, torch.tanh, torch.sigmoid)


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_method", target="clone"):
        reader = node.next
        if len(node.args) != 1 or node.kwargs or list(node.users) != [reader]:
            continue
        if reader.op != "call_function" or reader.target not in READERS:
            continue
        if reader.args != (node,) or reader.kwargs:
            continue
        reader.args = node.args
        gm.graph.erase_node(node)
    return _finish(gm)


@sound(13)
def drop_read_only_clones(graph_module: GraphModule) -> GraphModule:
    """Drops a clone that only the operation right after it reads."""
    return _rewrite(graph_module)
