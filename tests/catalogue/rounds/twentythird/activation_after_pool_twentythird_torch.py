"""A wrong pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault

_GROWING = {torch.relu, F.relu, torch.sigmoid, torch.tanh, F.relu6, F.hardsigmoid}


def _rewrite(gm, movable):
    graph = gm.graph
    for pool in list(graph.nodes):
        if pool.op != "call_function" or pool.target is not F.max_pool2d or pool.kwargs.get("return_indices"):
            continue
        act = pool.args[0] if pool.args else None
        if not isinstance(act, torch.fx.Node) or act.op != "call_function" or act.target not in movable:
            continue
        if len(act.args) != 1 or act.kwargs.get("inplace") or set(act.kwargs) - {"inplace"}:
            continue
        if list(act.users) != [pool] or pool.prev is not act:
            continue
        pool.args = (act.args[0], *pool.args[1:])
        with graph.inserting_after(pool):
            moved = graph.call_function(act.target, (pool,), dict(act.kwargs))
        pool.replace_all_uses_with(moved, delete_user_cb=lambda user, moved=moved: user is not moved)
        graph.erase_node(act)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    23,
    wrong="hardswish is no monotonic function: below -1.5 it grows again to the left, so that it does not commute with a maximum.",
)
def activation_after_pool_twentythird(gm: torch.fx.GraphModule):
    """Move an activation behind the max pooling that follows it: the pooling keeps the greatest value either way, and the activation then works on a quarter of the elements."""
    return _rewrite(gm, _GROWING | {F.hardswish})
