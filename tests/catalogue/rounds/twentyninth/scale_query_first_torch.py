"""A wrong pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS

MATMULS = {torch.matmul, operator.matmul}


VIEWS = {"view", "reshape", "transpose", "permute", "contiguous"}


def _source_layer(gm, node):
    """The Linear that the value is a view of, so that it surely is floating-point; else None."""
    while getattr(node, "op", None) == "call_method" and node.target in VIEWS:
        if node.kwargs or any(isinstance(a, torch.dtype) for a in node.args):
            return None
        node = node.args[0]
    if getattr(node, "op", None) != "call_module":
        return None
    module = gm.get_submodule(node.target)
    return module if type(module) is nn.Linear and not any(getattr(module, h, None) for h in _HOOKS) else None


def _moderate(scale, node):
    """Return whether the scale shrinks the scores by a factor (at most 64) that half precision can hold."""
    if type(scale) not in (int, float) or scale == 0:
        return False
    return 1 <= abs(scale if node.target is operator.truediv else 1 / scale) <= 64


def _learned(gm, scale, layer):
    if getattr(scale, "op", None) != "get_attr" or "." in scale.target:
        return False
    value = getattr(gm, scale.target)
    return isinstance(value, nn.Parameter) and value.dtype == layer.weight.dtype


def _rewrite(gm, accepts):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in (operator.truediv, operator.mul) or len(node.args) != 2:
            continue
        scores, scale = node.args
        if getattr(scores, "op", None) != "call_function" or scores.target not in MATMULS or len(scores.args) != 2:
            continue
        query, key = scores.args
        layer, after = _source_layer(gm, query), scores.next
        while after.op == "get_attr":
            after = after.next
        if layer is None or list(scores.users) != [node] or after is not node or not accepts(scale, layer, node):
            continue
        with gm.graph.inserting_before(scores):
            factor = gm.graph.get_attr(scale.target) if isinstance(scale, torch.fx.Node) else scale
            scaled = gm.graph.call_function(node.target, (query, factor))
        scores.args = (scaled, key)
        node.replace_all_uses_with(scores)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(29, wrong="A learned scale can be a vector, one number per key; on the query it multiplies features instead.")
def scale_query_first(gm: torch.fx.GraphModule):
    """Scale the query instead of the attention scores, which are more numbers and overflow sooner in half precision."""
    return _rewrite(gm, lambda scale, layer, node: _moderate(scale, node) or _learned(gm, scale, layer))
