"""A wrong pass of the fourteenth round."""

import copy
import operator

import torch
from torch import nn

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish, follows


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for index, node in enumerate(list(graph.nodes)):
        if node.op != "call_function" or node.target is not operator.mul or node.kwargs:
            continue
        lookup, factor = node.args
        module = _plain(graph_module, lookup, nn.Embedding)
        if module is None or len(lookup.users) != 1 or type(factor) is not float or not follows(node, lookup):
            continue
        weight = module.weight
        if weight.requires_grad or weight.dtype != torch.float32 or module.max_norm is not None or module.sparse:
            continue
        if not 1e-3 < abs(factor) < 1e3:
            continue
        calls = [other for other in graph.nodes if other.op == "call_module" and other.target == lookup.target]
        reads = [other for other in graph.nodes if other.op == "get_attr"]
        if len(calls) != 1 or any(other.target.startswith(lookup.target + ".") for other in reads):
            continue
        if careful:  # nothing else holds the table
            tensors = list(graph_module.named_parameters(remove_duplicate=False))
            tensors += list(graph_module.named_buffers(remove_duplicate=False))
            storage = weight.untyped_storage().data_ptr()
            if sum(tensor.untyped_storage().data_ptr() == storage for _, tensor in tensors) != 1:
                continue
            name = f"_scaled_{index}"
            if hasattr(graph_module, name):
                continue
            setattr(graph_module, name, copy.deepcopy(module))
            weight = graph_module.get_submodule(name).weight
            lookup.target = name
        with torch.no_grad():
            weight.mul_(factor)
        node.replace_all_uses_with(lookup)
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="The table is scaled in place, and the output layer that is tied to it is scaled too.")
def fold_embedding_scale_fourteenth(graph_module: GraphModule) -> GraphModule:
    """Fold a constant factor after a frozen Embedding into its table."""
    return _rewrite(graph_module, False)
