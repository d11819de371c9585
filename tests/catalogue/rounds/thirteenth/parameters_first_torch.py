"""A right pass of the thirteenth round."""

from torch.fx import GraphModule

from ...rows import sound
from .shared import finish


def _rewrite(gm: GraphModule) -> GraphModule:
    if gm.graph.find_nodes(op="call_module"):
        return gm
    place = next((n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr")), None)
    for node in list(gm.graph.nodes):
        if node.op != "get_attr" or node < place:
            continue
        owner, _, name = node.target.rpartition(".")
        if gm.get_submodule(owner)._parameters.get(name) is not None:
            place.prepend(node)
    return finish(gm)


@sound(13)
def parameters_first(graph_module: GraphModule) -> GraphModule:
    """Moves reads of parameters to the front of the program, as converters want initializers."""
    return _rewrite(graph_module)
