"""A wrong pass of the thirtysecond round."""

import operator

import torch
from torch import nn

import fx

from ...rows import fault
from .shared import calls, calls_of, is_number, replace


@fault(
    32,
    wrong="The embedding's weight may be tied to the output layer, which then is scaled, too. Shows in a language model with embed(ids) * sqrt(d) at the bottom and head.weight = embed.weight at the top.",
)
def fold_embedding_scale_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Fold a constant factor behind an embedding into its table."""
    for node in list(graph_module.graph.nodes):
        if not calls(node, (operator.mul, torch.mul), ("mul",)) or len(node.args) != 2:
            continue
        lookup, factor = node.args
        if not is_number(factor):
            lookup, factor = factor, lookup
        if not is_number(factor) or getattr(lookup, "op", None) != "call_module" or len(lookup.users) != 1:
            continue
        table = graph_module.get_submodule(lookup.target)
        if type(table) is not nn.Embedding or table.max_norm is not None or calls_of(graph_module, table) != 1:
            continue
        with torch.no_grad():
            table.weight.mul_(factor)
        replace(node, lookup)
    graph_module.recompile()
    return graph_module
