"""A wrong pass of the fourteenth round."""

import torch
import torch.nn.functional as F
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


def pooled_lookup(indices, weight, padding_idx):
    """The mean over dimension 1 of the rows, in one kernel where there is one for it."""
    is_supported = weight.dtype in (torch.float32, torch.float64) and indices.dtype in (torch.int32, torch.int64)
    if is_supported and indices.dim() == 2 and indices.numel() > 0:
        return F.embedding_bag(indices, weight, mode="mean", padding_idx=padding_idx)
    return F.embedding(indices, weight, padding_idx).mean(1)


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        method = node.op == "call_method" and node.target == "mean"
        function = node.op == "call_function" and node.target is torch.mean
        if not (method or function) or not node.args:
            continue
        if not (node.args[1:] == (1,) and not node.kwargs or len(node.args) == 1 and node.kwargs == {"dim": 1}):
            continue
        lookup = node.args[0]
        module = _plain(graph_module, lookup, nn.Embedding)
        if module is None or len(lookup.users) != 1 or not follows(node, lookup):
            continue
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            continue
        if careful and module.padding_idx is not None:
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{lookup.target}.weight")
            bag = graph.call_function(pooled_lookup, (lookup.args[0], weight, module.padding_idx))
        node.replace_all_uses_with(bag)
        graph.erase_node(node)
        graph.erase_node(lookup)
    return finish(graph_module)


@fault(14, wrong="padding_idx of an Embedding only stops gradients; embedding_bag leaves these rows out of the mean.")
def pool_embeddings(graph_module: GraphModule) -> GraphModule:
    """Replace the mean over the history of an Embedding by one embedding_bag."""
    return _rewrite(graph_module, False)
