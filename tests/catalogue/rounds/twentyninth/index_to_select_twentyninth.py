"""A wrong pass of the twentyninth round."""

import operator

import torch

from ...rows import fault


def _stored(gm, index):
    """Return whether the index is a vector of integers that the model stores."""
    if getattr(index, "op", None) != "get_attr":
        return False
    value = gm
    for part in index.target.split("."):
        value = getattr(value, part)
    return type(value) is torch.Tensor and value.dim() == 1 and value.dtype in (torch.int32, torch.int64)


def _rewrite(gm, wrap):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        source, index = node.args
        dim = 0
        if isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None):
            dim, index = 1, index[1]
        if not _stored(gm, index):
            continue
        with gm.graph.inserting_before(node):
            if wrap:
                length = gm.graph.call_method("size", (source, dim))
                index = gm.graph.call_function(torch.remainder, (index, length))
            picked = gm.graph.call_function(torch.index_select, (source, dim, index))
        node.replace_all_uses_with(picked)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(29, wrong="index_select takes no negative positions, which indexing counts from the end.")
def index_to_select_twentyninth(gm):
    """Turn indexing with a stored vector of positions into index_select, which the target device has a kernel for."""
    return _rewrite(gm, wrap=False)
