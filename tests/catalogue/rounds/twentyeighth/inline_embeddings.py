"""A wrong pass of the twentyeighth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import plain


def inline(gm, options):
    for node in list(gm.graph.nodes):
        if not plain(gm, node, torch.nn.Embedding) or not isinstance(node.args[0], fx.Node):
            continue
        table = gm.get_submodule(node.target)
        if table.max_norm is not None or table.scale_grad_by_freq or table.sparse:
            continue
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(f"{node.target}.weight")
            rows = gm.graph.call_function(F.embedding, (node.args[0], weight), options(table))
        node.replace_all_uses_with(rows)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Forgets padding_idx: the values are the same, but the row of the padding, which is never trained, gets a gradient.",
)
def inline_embeddings(gm):
    """Writes embedding modules as the function on their table, so that the table shows in the graph and can be placed."""
    return inline(gm, lambda table: {})
