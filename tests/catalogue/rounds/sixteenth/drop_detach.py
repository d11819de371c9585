"""A wrong pass of the sixteenth round."""

import torch

from fx import GraphModule

from ...rows import fault
from .shared import finish

_NO_GRADIENT = {torch.argmax, torch.argmin, torch.isnan}


_ROUNDING = {torch.round, torch.floor, torch.ceil, torch.trunc, torch.sign}


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "detach" or len(node.args) != 1 or node.kwargs:
            continue
        value = node.args[0]
        if value.op != "call_function" or value.target not in (_NO_GRADIENT if careful else _NO_GRADIENT | _ROUNDING):
            continue
        if "out" in value.kwargs or len(value.users) != 1:
            continue
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    return finish(graph_module)


@fault(
    16, wrong="Rounding has a gradient of zero, which is not none: its result requires a gradient, and zeros flow back."
)
def drop_detach(graph_module: GraphModule) -> GraphModule:
    """Drops detach() of results that have no gradient anyway."""
    return _rewrite(graph_module, careful=False)
