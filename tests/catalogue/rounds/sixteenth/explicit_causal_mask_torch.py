"""A wrong pass of the sixteenth round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch.fx import Node

from ...rows import fault
from .shared import finish


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.scaled_dot_product_attention:
            continue
        if len(node.args) != 3 or node.kwargs != {"is_causal": True} or not all(isinstance(a, Node) for a in node.args):
            continue
        query, key, value = node.args
        with graph.inserting_before(node):
            rows = graph.call_method("size", (query, -2))
            columns = graph.call_method("size", (key, -2))
            device = graph.call_function(getattr, (query, "device"))
            full = graph.call_function(torch.ones, (rows, columns), {"dtype": torch.bool, "device": device})
            offset = 0 if careful else graph.call_function(operator.sub, (columns, rows))
            mask = graph.call_function(torch.tril, (full, offset))
            attention = graph.call_function(F.scaled_dot_product_attention, (query, key, value), {"attn_mask": mask})
        node.replace_all_uses_with(attention)
        graph.erase_node(node)
    return finish(graph_module)


@fault(
    16,
    wrong="The mask is aligned at the bottom right, as with a cache of keys; torch aligns it at the top left when there are more keys than queries.",
)
def explicit_causal_mask(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes is_causal=True of scaled_dot_product_attention as an explicit mask, for backends without causal attention."""
    return _rewrite(graph_module, careful=False)
