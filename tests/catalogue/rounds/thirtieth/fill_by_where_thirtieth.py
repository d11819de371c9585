"""A wrong pass of the thirtieth round."""

import torch

import fx

from ...rows import fault
from .shared import _arg


def _lower(gm, keep_dtype):
    for node in list(gm.graph.nodes):
        if (node.op, node.target) not in (("call_method", "masked_fill"), ("call_function", torch.masked_fill)):
            continue
        value, mask, fill = _arg(node, 0, "input"), _arg(node, 1, "mask"), _arg(node, 2, "value")
        if type(fill) not in (int, float) or not isinstance(value, fx.Node) or not isinstance(mask, fx.Node):
            continue
        with gm.graph.inserting_before(node):
            if keep_dtype:
                fill = gm.graph.call_method("new_full", (value, (), fill))
            chosen = gm.graph.call_function(torch.where, (mask, fill, value))
            chosen = gm.graph.call_method("contiguous", (chosen,))  # as masked_fill's result is
        node.replace_all_uses_with(chosen)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="masked_fill keeps the dtype of the tensor, torch.where promotes integers with a float number: wrong for "
    "integer tensors filled with a float (token numbers filled with 0.0).",
)
def fill_by_where_thirtieth(gm: fx.GraphModule):
    """Lower masked_fill, which the target lacks, to a selection."""
    return _lower(gm, False)
