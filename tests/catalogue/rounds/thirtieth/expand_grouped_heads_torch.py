"""A wrong pass of the thirtieth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import _arg


def _expand(gm, after):
    for node in list(gm.graph.nodes):
        method = (node.op, node.target) == ("call_method", "repeat_interleave")
        if not method and (node.op, node.target) != ("call_function", torch.repeat_interleave):
            continue
        heads, count, dim = _arg(node, 0, "input"), _arg(node, 1, "repeats"), _arg(node, 2, "dim")
        if type(count) is not int or count < 2 or type(dim) is not int or "output_size" in node.kwargs:
            continue
        if not isinstance(heads, torch.fx.Node):
            continue
        first, second = (dim, dim + 1) if dim >= 0 else (dim - 1, dim)
        with gm.graph.inserting_before(node):
            copies = gm.graph.call_function(torch.stack, ([heads] * count, second if after else first))
            dense = gm.graph.call_method("contiguous", (copies,))  # a stack may follow the strides of its parts
            whole = gm.graph.call_method("flatten", (dense, first, second))
        node.replace_all_uses_with(whole)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The copies are stacked before the dimension, not after it, which tiles the heads (0 1 0 1) where "
    "repeat_interleave repeats each (0 0 1 1): wrong with more than one key-value head.",
)
def expand_grouped_heads(gm: torch.fx.GraphModule):
    """Lower repeat_interleave by a number, as grouped-query attention has it, to a stack and a reshape."""
    return _expand(gm, False)
