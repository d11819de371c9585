"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import fault


def repeated(node):
    """(tensor, times, axis) of a repeat_interleave by a number along one axis counted from the front, or None."""
    if not (
        node.op == "call_method"
        and node.target == "repeat_interleave"
        or node.op == "call_function"
        and node.target is torch.repeat_interleave
    ):
        return None
    bound = dict(zip(("input", "repeats", "dim"), node.args))
    bound.update(node.kwargs)
    if len(node.args) > 3 or set(bound) != {"input", "repeats", "dim"} or not isinstance(bound["input"], torch.fx.Node):
        return None
    times, axis = bound["repeats"], bound["dim"]
    if type(times) is int and times >= 1 and type(axis) is int and axis >= 1:
        return bound["input"], times, axis
    return None


def rewrite(gm, build):
    for node in list(gm.graph.nodes):
        repetition = repeated(node)
        if repetition is None:
            continue
        with gm.graph.inserting_before(node):
            wide = build(gm.graph, *repetition)
        node.replace_all_uses_with(wide)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def joined(graph, x, times, axis):
    copies = graph.call_function(torch.cat, ([x] * times, axis))
    return graph.call_method("clone", (copies,), {"memory_format": torch.contiguous_format})


@fault(
    28,
    wrong="Repeats the heads in blocks, h0 h1 h0 h1, not each beside itself, h0 h0 h1 h1: the same for a single head only.",
)
def expand_kv_heads_twentyeighth(gm: torch.fx.GraphModule):
    """Writes the repeat_interleave of key and value heads as a concatenation, for a runtime without repeat_interleave."""
    return rewrite(gm, joined)
