"""A right pass of the thirtieth round."""

import operator

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import sound
from .shared import _arg


def _parameter(gm, node):
    value = gm
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    for part in node.target.split("."):
        value = getattr(value, part, None)
    return value if type(value) is nn.Parameter and value.is_floating_point() else None


@sound(30)
def bias_into_linear_thirtieth(gm: torch.fx.GraphModule):
    """Let F.linear add the bias that is added to its result."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.add:
            continue
        for product, vector in (node.args, node.args[::-1]):
            if not isinstance(product, torch.fx.Node) or product.target is not F.linear or len(product.users) != 1:
                continue
            weight, bias = _parameter(gm, _arg(product, 1, "weight")), _parameter(gm, vector)
            if weight is None or bias is None or _arg(product, 2, "bias") is not None or weight.dim() != 2:
                continue
            after = product.next
            while after.op == "get_attr":
                after = after.next
            if after is not node or bias.shape != weight.shape[:1] or bias.dtype != weight.dtype:
                continue
            with gm.graph.inserting_before(node):
                fused = gm.graph.call_function(
                    F.linear, (_arg(product, 0, "input"), _arg(product, 1, "weight"), vector)
                )
            node.replace_all_uses_with(fused)
            gm.graph.erase_node(node)
            gm.graph.erase_node(product)
            break
    gm.graph.lint()
    gm.recompile()
    return gm
