"""A wrong pass of the thirtysecond round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import calls, is_number, replace


@fault(
    32,
    wrong="Autograd keeps the result of sigmoid, tanh and exp for the backward pass; written in place, backward raises. Shows in training a model with torch.sigmoid(x) * 2; sin, cos, erf, log1p and gelu keep their input, and are right.",
)
def scale_activation_in_place(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Scale the fresh result of an activation in place, to save memory."""
    fresh = (torch.sigmoid, torch.tanh, torch.exp, torch.sin, torch.cos, torch.erf, torch.log1p, F.gelu)
    for node in list(graph_module.graph.nodes):
        if not calls(node, (operator.mul, torch.mul), ("mul",)) or len(node.args) != 2 or node.kwargs:
            continue
        value, factor = node.args
        if (
            not calls(value, fresh)
            or value.kwargs.get("out") is not None
            or len(value.users) != 1
            or not is_number(factor)
        ):
            continue
        with graph_module.graph.inserting_before(node):
            scaled = graph_module.graph.call_method("mul_", (value, factor))
        replace(node, scaled)
    graph_module.recompile()
    return graph_module
