"""A wrong pass of the sixteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish

_METHODS = {"float": torch.float32, "double": torch.float64, "int": torch.int32, "short": torch.int16}


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.sum or not set(node.kwargs) <= {"dim", "keepdim"}:
            continue
        if not node.args or not isinstance(node.args[0], Node):
            continue
        cast = node.args[0]
        if cast.op != "call_method" or cast.target not in _METHODS or len(cast.args) != 1 or cast.kwargs:
            continue
        dtype = _METHODS[cast.target]
        if len(cast.users) != 1 or node.prev is not cast or (careful and not dtype.is_floating_point):
            continue
        node.args = (cast.args[0], *node.args[1:])
        node.kwargs = {**node.kwargs, "dtype": dtype}
        graph.erase_node(cast)
    return finish(graph_module)


@fault(
    16,
    wrong="torch.sum of an integer or boolean tensor returns int64; with dtype=torch.int32 it returns, and overflows in, int32.",
)
def cast_into_sum(graph_module: GraphModule) -> GraphModule:
    """Folds a cast into the dtype argument of the sum that follows, so that no cast copy is made."""
    return _rewrite(graph_module, careful=False)
