"""A wrong pass of the twelfth round."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault


class MeanBag(nn.Module):
    """The mean of the rows that a 2-D tensor of indices names."""

    def __init__(self, weight, padding_idx):
        super().__init__()
        self.weight, self.padding_idx = weight, padding_idx

    def forward(self, indices):
        if indices.dim() != 2 or indices.size(1) == 0:
            return F.embedding(indices, self.weight, self.padding_idx).mean(1)
        return F.embedding_bag(indices, self.weight, mode="mean", padding_idx=self.padding_idx)


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _run(gm, allow_padding):
    graph, mods = gm.graph, dict(gm.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.target not in ("mean", torch.mean) or [*node.args[1:], *node.kwargs.items()] not in ([1], [("dim", 1)]):
            continue
        rows = node.args[0]
        table = mods.get(rows.target) if getattr(rows, "op", "") == "call_module" else None
        if type(table) is not nn.Embedding or _hooked(table) or len(rows.users) != 1 or len(rows.args) != 1:
            continue
        if table.max_norm is not None or table.sparse or table.scale_grad_by_freq:
            continue
        if table.padding_idx is not None and not allow_padding:
            continue
        name = f"bag_{rows.name}"
        gm.add_submodule(name, MeanBag(table.weight, table.padding_idx))
        with graph.inserting_before(rows):
            bag = graph.call_module(name, rows.args)
        node.replace_all_uses_with(bag)
        graph.erase_node(node)
        graph.erase_node(rows)
    gm.recompile()
    return gm


@fault(12, wrong="padding_idx of an embedding_bag leaves the padding out of the mean; that of an embedding counts it.")
def embedding_mean_to_bag(module):
    """Fuse the mean over the items of a user's history with the lookup of their embeddings."""
    return _run(module, True)
