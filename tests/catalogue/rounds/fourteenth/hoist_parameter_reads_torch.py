"""A right pass of the fourteenth round."""

from torch import nn
from torch.fx import GraphModule

from ...rows import sound
from .shared import finish


@sound(14)
def hoist_parameter_reads(graph_module: GraphModule) -> GraphModule:
    """Move reads of parameters to the top, behind the inputs."""
    graph = graph_module.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op != "get_attr" or node is first:
            continue
        owner, _, name = node.target.rpartition(".")
        if type(graph_module.get_submodule(owner)._parameters.get(name)) is not nn.Parameter:
            continue
        first.prepend(node)
    return finish(graph_module)
