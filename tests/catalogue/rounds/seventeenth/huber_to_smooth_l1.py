"""A wrong pass of the seventeenth round."""

import torch.nn.functional as F

from fx import GraphModule, Node

from ...rows import fault


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is not F.huber_loss or len(node.args) != 2:
            continue
        prediction, target = node.args
        if not isinstance(target, Node) or target.op != "call_method" or target.target != "type_as":
            continue  # the two losses promote mixed types in different ways
        if len(target.args) != 2 or target.args[1] is not prediction:
            continue
        kwargs = dict(node.kwargs)
        if kwargs.pop("weight", None) is not None or set(kwargs) - {"reduction", "delta"}:
            continue
        delta = kwargs.pop("delta", 1.0)
        if type(delta) not in (int, float) or not delta > 0 or careful and delta != 1:
            continue
        node.target = F.smooth_l1_loss
        node.kwargs = kwargs | {"beta": float(delta)}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17, wrong="Huber loss is delta times smooth L1 loss; the factor is forgotten, which shows for a delta other than 1."
)
def huber_to_smooth_l1(graph_module: GraphModule) -> GraphModule:
    """Write Huber loss as smooth L1 loss, which more backends have."""
    return _rewrite(graph_module, careful=False)
