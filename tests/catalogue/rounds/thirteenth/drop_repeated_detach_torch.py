"""A right pass of the thirteenth round."""

from torch.fx import GraphModule

from ...rows import sound
from .shared import finish


def _detach(node) -> bool:
    return node.op == "call_method" and node.target == "detach" and len(node.args) == 1 and not node.kwargs


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in list(gm.graph.nodes):
        if not _detach(node) or not hasattr(node.args[0], "op"):
            continue
        inner = node.args[0]
        if _detach(inner) and len(inner.users) == 1:
            node.replace_all_uses_with(inner)
            gm.graph.erase_node(node)
    return finish(gm)


@sound(13)
def drop_repeated_detach(graph_module: GraphModule) -> GraphModule:
    """Makes one detach of two in a row."""
    return _rewrite(graph_module)
