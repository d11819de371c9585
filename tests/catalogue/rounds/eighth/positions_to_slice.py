"""A wrong pass of the eighth round."""

import operator

import torch
from torch import nn

import fx

from ...rows import fault


def _rewrite(module, start_of):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer, positions = module.get_submodule(node.target), node.args[0]
        if (
            type(layer) is not nn.Embedding
            or layer._forward_hooks
            or layer._forward_pre_hooks
            or "forward" in vars(layer)
        ):
            continue
        if layer.max_norm is not None or layer.padding_idx is not None or layer.sparse or layer.scale_grad_by_freq:
            continue
        if not isinstance(positions, fx.Node) or positions.target is not torch.arange or positions.next is not node:
            continue
        if len(positions.args) not in (1, 2) or len(positions.users) != 1:
            continue
        if set(positions.kwargs) - {"device", "dtype"} or positions.kwargs.get("dtype", torch.long) is not torch.long:
            continue
        start, end = start_of(positions), positions.args[-1]
        if not isinstance(end, (int, fx.Node)) or not (isinstance(start, fx.Node) or type(start) is int and start >= 0):
            continue
        with graph.inserting_before(node):
            table = graph.get_attr(f"{node.target}.weight")
            rows = graph.call_function(operator.getitem, (table, slice(start, end)))
            copied = graph.call_method("clone", (rows,))
        node.replace_all_uses_with(copied)
        graph.erase_node(node)
        graph.erase_node(positions)
    module.recompile()
    return module


@fault(
    8, wrong="It takes the rows from 0 on, whatever arange starts at (positions after a cache, or OPT's offset of 2)."
)
def positions_to_slice(module: fx.GraphModule) -> fx.GraphModule:
    """Replace a look-up of `torch.arange` in an embedding by the first rows of its table."""
    return _rewrite(module, lambda positions: 0)
