"""A wrong pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import calls, replace


@fault(
    32,
    wrong="Functional dropout has its own training argument; F.dropout(x, 0.5) drops in eval mode as well. Shows in a model with Monte Carlo dropout (training=True, the default) that is transformed in eval mode.",
)
def strip_eval_dropout(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove functional dropouts from a model in eval mode."""
    if graph_module.training:
        return graph_module
    for node in list(graph_module.graph.nodes):
        if calls(node, (F.dropout, F.alpha_dropout, F.feature_alpha_dropout)) and node.args:
            replace(node, node.args[0])
    graph_module.recompile()
    return graph_module
