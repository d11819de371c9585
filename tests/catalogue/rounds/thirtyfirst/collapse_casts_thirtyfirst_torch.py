"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx

from ...rows import fault

METHODS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
}


def _target_dtype(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return METHODS.get(node.target) if len(node.args) == 1 else None


def _by_width(first, second):
    return first.itemsize >= second.itemsize


def _collapse(gm, droppable):
    for node in list(gm.graph.nodes):
        second = _target_dtype(node)
        first = _target_dtype(node.args[0]) if second is not None else None
        if first is None:
            continue
        inner = node.args[0]
        if first is second:
            node.replace_all_uses_with(inner)
            gm.graph.erase_node(node)
        elif node.prev is inner and len(inner.users) == 1 and droppable(first, second):
            with gm.graph.inserting_before(inner):  # a copy, also where the source has the dtype already
                cast = gm.graph.call_method("to", (inner.args[0], second), {"copy": True})
            node.replace_all_uses_with(cast)
            gm.graph.erase_node(node)
            gm.graph.erase_node(inner)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="Of two casts the first is dropped if its dtype is at least as wide in bytes as the second's; int64 is as "
    "wide as float32 and still truncates, so that x.long().float() loses the truncation.",
)
def collapse_casts_thirtyfirst(gm: torch.fx.GraphModule):
    """Collapse chains of dtype casts that mixed precision leaves behind."""
    return _collapse(gm, _by_width)
