"""A wrong pass of the fourteenth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


def _float_linear(graph_module, node):
    """The Linear that a node calls, whose result is float32 or float64."""
    module = _plain(graph_module, node, nn.Linear)
    return module if module is not None and module.weight.dtype in (torch.float32, torch.float64) else None


def merged_linear(x, weights, biases):
    """One product for several layers; the parameters stay as they are."""
    bias = torch.cat(biases) if biases else None
    return F.linear(x, torch.cat(weights), bias)


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        three = [node, node.next, node.next.next]
        modules = [_float_linear(graph_module, call) for call in three]
        if any(module is None for module in modules) or any(call.args != node.args for call in three):
            continue
        weights = [module.weight for module in modules]
        biased = [module.bias is not None for module in modules]
        if len(set(biased)) != 1 or any((w.dtype, w.device) != (weights[0].dtype, weights[0].device) for w in weights):
            continue
        if biased[0] and any((m.bias.dtype, m.bias.device) != (weights[0].dtype, weights[0].device) for m in modules):
            continue
        sizes = [weight.shape[0] for weight in weights]
        if not careful and sum(sizes) % 3:
            continue
        with graph.inserting_before(node):
            reads = [graph.get_attr(f"{call.target}.weight") for call in three]
            biases = [graph.get_attr(f"{call.target}.bias") for call in three] if biased[0] else []
            product = graph.call_function(merged_linear, (node.args[0], reads, biases))
            if careful:
                cut = graph.call_method("split", (product, sizes, -1))
            else:
                cut = graph.call_method("chunk", (product, 3, -1))
            for place, call in enumerate(three):
                part = graph.call_function(operator.getitem, (cut, place))
                own = graph.call_method("clone", (part,), {"memory_format": torch.contiguous_format})
                call.replace_all_uses_with(own)
        for call in three:
            graph.erase_node(call)
        return _rewrite(graph_module, careful)  # the list of nodes is out of date
    return finish(graph_module)


@fault(14, wrong="The product is cut into three equal parts; with grouped queries key and value are narrower.")
def merge_projections_fourteenth(graph_module: GraphModule) -> GraphModule:
    """Merge three Linear layers in a row that read the same value into one product."""
    return _rewrite(graph_module, False)
