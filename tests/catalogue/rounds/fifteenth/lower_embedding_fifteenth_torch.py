"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import parameter, parameters_are_plain, plain


@fault(15, wrong="padding_idx is not handed on: the values are the same, but the padding row then gets a gradient.")
def lower_embedding_fifteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower ``nn.Embedding`` to ``F.embedding`` with its weight as an operand."""
    for node in list(graph_module.graph.nodes):
        table = plain(graph_module, node, nn.Embedding)
        if table is None or table.max_norm is not None or not parameters_are_plain(table, "weight"):
            continue
        settings = {"scale_grad_by_freq": table.scale_grad_by_freq, "sparse": table.sparse}
        with graph_module.graph.inserting_before(node):
            weight = parameter(graph_module, node, "weight")
            new = graph_module.graph.call_function(F.embedding, (node.args[0], weight), settings)
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
