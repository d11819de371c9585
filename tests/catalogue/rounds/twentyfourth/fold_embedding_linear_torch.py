"""A wrong pass of the twentyfourth round."""

import torch.fx
from torch import nn
from torch.nn import functional as F

from ...rows import fault


def _is(gm, node, kind):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    m = gm.get_submodule(node.target)
    return type(m) is kind and not any(v for k, v in vars(m).items() if k.endswith("_hooks"))


def _fold(gm, padded):
    graph = gm.graph
    for node in [*graph.nodes]:
        if not _is(gm, node, nn.Linear):
            continue
        lookup = node.args[0]
        if not _is(gm, lookup, nn.Embedding) or len(lookup.users) != 1:
            continue
        table = gm.get_submodule(lookup.target)
        if table.max_norm is not None or table.scale_grad_by_freq or table.sparse:
            continue
        if table.padding_idx is not None and not padded:
            continue
        has_bias = gm.get_submodule(node.target).bias is not None
        with graph.inserting_before(lookup):
            rows = graph.get_attr(f"{lookup.target}.weight")
            weight = graph.get_attr(f"{node.target}.weight")
            bias = graph.get_attr(f"{node.target}.bias") if has_bias else None
            projected = graph.call_function(F.linear, (rows, weight, bias))
            looked_up = graph.call_function(F.embedding, (lookup.args[0], projected, table.padding_idx))
        node.replace_all_uses_with(looked_up)
        graph.erase_node(node)
        graph.erase_node(lookup)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="padding_idx is handed to the look-up in the projected table, which now stops the gradients of the Linear layer's weight and bias at padded places too.",
)
def fold_embedding_linear(gm: torch.fx.GraphModule):
    """Look up in the projected table."""
    return _fold(gm, padded=True)
