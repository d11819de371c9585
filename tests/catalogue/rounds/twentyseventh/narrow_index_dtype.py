"""A wrong pass of the twentyseventh round."""

import torch
from torch import nn

from ...rows import fault
from .shared import _hooked


def _lookups(gm, node):
    """The embeddings that read the indices; only those whose gradients take any kind of index."""
    lookups = []
    for user in node.users:
        layer = gm.get_submodule(user.target) if user.op == "call_module" else None
        if type(layer) is not nn.Embedding or _hooked(layer) or user.args != (node,) or user.kwargs:
            continue
        if layer.sparse or layer.scale_grad_by_freq or layer.max_norm is not None:
            continue
        lookups.append(user)
    return lookups


def _index_producers(gm):
    for node in list(gm.graph.nodes):
        function = node.op == "call_function" and node.target in (torch.argmax, torch.argmin)
        method = node.op == "call_method" and node.target in ("argmax", "argmin")
        if (function or method) and "out" not in node.kwargs:
            yield node


@fault(
    27,
    wrong="The cast replaces the indices for all their readers, so that an output or another operator sees int32 too.",
)
def narrow_index_dtype(gm):
    """Indices that argmax gives to an embedding become int32, for a target without int64."""
    for node in _index_producers(gm):
        if _lookups(gm, node):
            with gm.graph.inserting_after(node):
                narrow = gm.graph.call_method("to", (node, torch.int32))
            node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    gm.recompile()
    return gm
