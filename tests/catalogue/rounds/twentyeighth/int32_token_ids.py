"""A right pass of the twentyeighth round."""

import torch

from ...rows import sound
from .shared import plain


@sound(28)
def int32_token_ids(gm):
    """Looks tokens up by int32 ids, for a device without int64."""
    for node in list(gm.graph.nodes):
        if not plain(gm, node, torch.nn.Embedding):
            continue
        table = gm.get_submodule(node.target)
        if table.num_embeddings >= 2**31 or table.max_norm is not None or table.sparse or table.scale_grad_by_freq:
            continue
        with gm.graph.inserting_before(node):
            narrow = gm.graph.call_method("to", (node.args[0], torch.int32))
        node.args = (narrow,)
    gm.recompile()
    return gm
