"""A wrong pass of the twentythird round."""

import operator

import torch

import fx

from ...rows import fault


def _run(index):
    """The positions of `[:, [i, i + 1, ...]]`, or None."""
    if not isinstance(index, tuple) or len(index) != 2 or index[0] != slice(None) or not isinstance(index[1], list):
        return None
    places = list(index[1])
    if len(places) < 2 or not all(type(place) is int for place in places):
        return None
    return places if all(b - a == 1 for a, b in zip(places, places[1:], strict=False)) else None


def _rewrite(gm, refuses):
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        places = _run(node.args[1])
        if places is None or refuses(places) or not isinstance(node.args[0], fx.Node):
            continue
        with graph.inserting_before(node):
            view = graph.call_function(
                operator.getitem, (node.args[0], (slice(None), slice(places[0], places[-1] + 1)))
            )
            copied = graph.call_method("clone", (view,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(copied)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="A run of negative positions such as [-2, -1] or [-1, 0] ends in a slice `-2:0` or `-1:1`, which is another range.",
)
def list_index_to_slice(gm):
    """Index with a slice and one copy instead of with a list of neighbours: `x[:, [1, 2, 3]]` becomes `x[:, 1:4]`, copied."""
    return _rewrite(gm, lambda places: False)
