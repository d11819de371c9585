"""A wrong pass of the twentythird round."""

import operator

import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _rewrite(gm, refuses):
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.embedding or len(node.args) != 2:
            continue
        if (
            node.kwargs.get("max_norm") is not None
            or node.kwargs.get("sparse")
            or node.kwargs.get("scale_grad_by_freq")
        ):
            continue
        if refuses(node):
            continue
        places, table = node.args
        with graph.inserting_before(node):
            rows = graph.call_function(operator.getitem, (table, places))
        node.replace_all_uses_with(rows)
        graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


@fault(23, wrong="`padding_idx` is dropped: the values are the same, but the row of the padding now gets a gradient.")
def embedding_to_index(gm: torch.fx.GraphModule):
    """Write an embedding as plain indexing of its table, for backends that have a gather but no embedding."""
    return _rewrite(gm, lambda node: False)
