"""A wrong pass of the thirtysecond round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import argument, calls, has_writes, is_number, replace


@fault(
    32,
    wrong="A row in which everything is masked. The finite fill makes the softmax uniform there (the mean of the values); scaled_dot_product_attention returns 0 or NaN. Shows in attention with a padding mask of an empty sequence.",
)
def fuse_masked_attention_thirtysecond(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace softmax(masked_fill(q @ k.T / s, mask, -1e9)) @ v by scaled_dot_product_attention."""
    products = {"functions": (torch.matmul, operator.matmul), "methods": ("matmul",)}
    if has_writes(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if not calls(node, **products) or len(node.args) != 2:
            continue
        softmax, value = node.args
        if not calls(softmax, (torch.softmax, F.softmax), ("softmax",)) or argument(softmax, 1, "dim") != -1:
            continue
        if softmax.kwargs.get("dtype") is not None:
            continue
        masked = softmax.args[0]
        if not calls(masked, (torch.masked_fill,), ("masked_fill",)):
            continue
        mask, fill = argument(masked, 1, "mask"), argument(masked, 2, "value")
        if not is_number(fill) or fill > -1e4:
            continue
        scores, scale, inner = masked.args[0], 1.0, [softmax, masked]
        if calls(scores, (operator.truediv, torch.div), ("div",)) and len(scores.args) == 2 and not scores.kwargs:
            if not is_number(scores.args[1]) or scores.args[1] == 0:
                continue
            inner.append(scores)
            scores, scale = scores.args[0], 1 / scores.args[1]
        elif calls(scores, (operator.mul, torch.mul), ("mul",)) and len(scores.args) == 2:
            if not is_number(scores.args[1]):
                continue
            inner.append(scores)
            scores, scale = scores.args[0], float(scores.args[1])
        if not calls(scores, **products) or len(scores.args) != 2:
            continue
        query, transposed = scores.args
        if not calls(transposed, (torch.transpose,), ("transpose",)) or transposed.args[1:] not in ((-2, -1), (-1, -2)):
            continue
        inner += [scores, transposed]
        if any(len(part.users) != 1 for part in inner):
            continue
        with graph_module.graph.inserting_before(node):
            keep = graph_module.graph.call_function(torch.logical_not, (mask,))
            fused = graph_module.graph.call_function(
                F.scaled_dot_product_attention,
                (query, transposed.args[0], value),
                {"attn_mask": keep, "scale": scale},
            )
        replace(node, fused)
        for part in inner:
            graph_module.graph.erase_node(part)
    graph_module.recompile()
    return graph_module
