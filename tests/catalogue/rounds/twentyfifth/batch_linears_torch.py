"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import writes


def groups(gm):
    """Calls of linear layers by what they read and what their weights are like."""
    calls_of_kind = {}
    for node in gm.graph.nodes:
        module = gm.get_submodule(node.target) if node.op == "call_module" else None
        if type(module) is torch.nn.Linear and module.bias is not None and len(node.args) == 1 and not node.kwargs:
            tensors = (module.weight, module.bias)
            kind = tuple((tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors)
            calls_of_kind.setdefault((node.args[0], module.in_features, kind), []).append(node)
    return [calls for calls in calls_of_kind.values() if len(calls) > 1]


def batch(gm, finish):
    if writes(gm):
        return gm
    graph = gm.graph
    for calls in groups(gm):
        with graph.inserting_before(calls[0]):
            weights = [graph.get_attr(f"{call.target}.weight") for call in calls]
            biases = [graph.get_attr(f"{call.target}.bias") for call in calls]
            args = (
                calls[0].args[0],
                graph.call_function(torch.cat, (weights,)),
                graph.call_function(torch.cat, (biases,)),
            )
            whole, start = graph.call_function(F.linear, args), 0
            for call in calls:
                size = gm.get_submodule(call.target).out_features
                part = finish(graph, graph.call_method("narrow", (whole, -1, start, size)))
                call.replace_all_uses_with(part)
                start += size
        for call in calls:
            graph.erase_node(call)
    gm.recompile()
    return gm


@fault(25, wrong="The parts are slices, not contiguous: a view of one raises, and results have other strides.")
def batch_linears(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Batch linear layers that read the same tensor (q, k, v; gate and up) into one, and take their parts of its result."""
    return batch(gm, lambda graph, part: part)
