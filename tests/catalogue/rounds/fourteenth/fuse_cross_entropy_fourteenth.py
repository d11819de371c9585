"""A wrong pass of the fourteenth round."""

import torch.nn.functional as F

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish, follows

_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss:
            continue
        bound = dict(zip(_NAMES, node.args)) | dict(node.kwargs)
        logs = bound.get("input")
        if bound.get("size_average") is not None or bound.get("reduce") is not None or "target" not in bound:
            continue
        if not isinstance(logs, fx.Node) or logs.op != "call_function" or logs.target is not F.log_softmax:
            continue
        if len(logs.users) != 1 or len(logs.args) != 1 or logs.kwargs.get("dim") != 1 or not follows(node, logs):
            continue
        if any(value is logs for name, value in bound.items() if name != "input"):
            continue
        if careful and logs.kwargs.get("dtype") is not None:
            continue
        rest = {name: bound[name] for name in ("weight", "ignore_index", "reduction") if name in bound}
        with graph.inserting_before(node):
            loss = graph.call_function(F.cross_entropy, (logs.args[0], bound["target"]), rest)
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
        graph.erase_node(logs)
    return finish(graph_module)


@fault(14, wrong="The `dtype` of log_softmax (half logits, a loss in float32) is not looked at.")
def fuse_cross_entropy_fourteenth(graph_module: GraphModule) -> GraphModule:
    """Replace nll_loss(log_softmax(x, dim=1), y, ...) by cross_entropy(x, y, ...)."""
    return _rewrite(graph_module, False)
