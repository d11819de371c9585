"""A wrong pass of the thirtieth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _plain


def _lower(gm, accepts):
    layers, graph = dict(gm.named_modules(remove_duplicate=False)), gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.Embedding) or len(node.args) != 1:
            continue
        layer, tokens = layers[node.target], node.args[0]
        if layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq or not accepts(layer):
            continue
        with graph.inserting_before(node):
            table = graph.get_attr(f"{node.target}.weight")
            flat = graph.call_method("reshape", (tokens, -1))
            rows = graph.call_function(torch.index_select, (table, 0, flat))
            shape = graph.call_function(operator.add, (graph.call_method("size", (tokens,)), (layer.weight.shape[1],)))
            vectors = graph.call_method("view", (rows, shape))
        node.replace_all_uses_with(vectors)
        graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="padding_idx is forgotten: the row of the padding token gets a gradient, which nn.Embedding keeps at "
    "zero; shows in the gradient of the table of layers with padding_idx.",
)
def embedding_by_rows(gm: torch.fx.GraphModule):
    """Lower nn.Embedding to a selection of rows, which the target runs by its gather engine."""
    return _lower(gm, lambda layer: True)
