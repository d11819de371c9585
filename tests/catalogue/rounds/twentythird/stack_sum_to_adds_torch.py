"""A wrong pass of the twentythird round."""

import operator
from functools import reduce

import torch
import torch.fx

from ...rows import fault


def _rewrite(gm, refuses):
    graph = gm.graph
    for total in list(graph.nodes):
        if total.op != "call_function" or total.target is not torch.sum or total.kwargs or total.args[1:] != (0,):
            continue
        stack = total.args[0]
        if not isinstance(stack, torch.fx.Node) or stack.target is not torch.stack or list(stack.users) != [total]:
            continue
        branches = stack.args[0]
        if stack.args[1:] not in ((), (0,)) or stack.kwargs.get("dim", 0) != 0 or set(stack.kwargs) - {"dim"}:
            continue
        if not isinstance(branches, (list, tuple)) or len(branches) < 2 or total.prev is not stack or refuses(branches):
            continue
        with graph.inserting_before(total):
            added = reduce(lambda a, b: graph.call_function(operator.add, (a, b)), branches)
            dense = graph.call_method("contiguous", (added,))
        total.replace_all_uses_with(dense)
        graph.erase_node(total)
        graph.erase_node(stack)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="`sum` gives int64 for booleans and small integers, additions keep the type: counts of masks become a logical or.",
)
def stack_sum_to_adds(gm: torch.fx.GraphModule):
    """Add the branches directly instead of stacking them and summing over the new dimension, which saves the stacked copy."""
    return _rewrite(gm, lambda branches: False)
