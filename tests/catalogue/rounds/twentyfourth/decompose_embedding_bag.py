"""A wrong pass of the twentyfourth round."""

import torch
from torch import nn
from torch.nn import functional as F

from ...rows import fault


def _decompose(gm, accepts):
    graph = gm.graph
    for node in graph.find_nodes(op="call_module"):
        bag = gm.get_submodule(node.target)
        if type(bag) is not nn.EmbeddingBag or bag.mode not in ("sum", "mean"):
            continue
        if any(v for k, v in vars(bag).items() if k.endswith("_hooks")) or bag.include_last_offset:
            continue
        if bag.padding_idx is not None or bag.max_norm is not None or bag.scale_grad_by_freq or bag.sparse:
            continue
        if len(node.args) != 1 or not accepts(node):  # with offsets the ids are flat
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            rows = graph.call_function(F.embedding, (node.args[0], weight))
            reduced = graph.call_function(torch.sum if bag.mode == "sum" else torch.mean, (rows, 1))
        node.replace_all_uses_with(reduced)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(24, wrong="per_sample_weights given by keyword is not looked at, and is lost.")
def decompose_embedding_bag(gm):
    """Replace each EmbeddingBag of two-dimensional ids."""
    return _decompose(gm, lambda node: node.kwargs.get("offsets") is None)
