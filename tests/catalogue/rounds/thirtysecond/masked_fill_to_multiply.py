"""A wrong pass of the thirtysecond round."""

import torch

import fx

from ...rows import fault
from .shared import argument, calls, is_number, replace


@fault(
    32,
    wrong="Values that are not finite where the mask is set: 0 * inf is NaN. Shows in a model that masks the logarithm of 0, torch.log(x).masked_fill(x == 0, 0), as entropies do.",
)
def masked_fill_to_multiply(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Multiply by the inverted mask in place of filling with zero, for backends without masked_fill."""
    for node in list(graph_module.graph.nodes):
        if not calls(node, (torch.masked_fill,), ("masked_fill",)) or not node.args:
            continue
        mask, value = argument(node, 1, "mask"), argument(node, 2, "value")
        if not is_number(value) or value != 0 or mask is None:
            continue
        with graph_module.graph.inserting_before(node):
            keep = graph_module.graph.call_function(torch.logical_not, (mask,))
            product = graph_module.graph.call_function(torch.mul, (node.args[0], keep))
        replace(node, product)
    graph_module.recompile()
    return graph_module
