"""A right pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F

from ...rows import sound
from .shared import argument, calls, replace


# Only if the call itself says training=False, with a legal probability: then it returns its input itself, and
# draws no random numbers. The mode of the model does not matter to the functional form.
@sound(32)
def remove_constant_dropout(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove functional dropouts that are switched off in the program."""
    for node in list(graph_module.graph.nodes):
        if not calls(node, (F.dropout,)) or not node.args or "input" in node.kwargs:
            continue
        probability, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", True)
        if training is not False or type(probability) not in (int, float) or not 0 <= probability <= 1:
            continue
        if isinstance(node.args[0], torch.fx.Node):
            replace(node, node.args[0])
    graph_module.recompile()
    return graph_module
