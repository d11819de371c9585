"""A wrong pass of the thirtieth round."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _arg, _plain


def _legalize(gm, spell):
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is F.relu6:
            value = _arg(node, 0, "input")
            if _arg(node, 1, "inplace", False) is not False:
                continue
        elif node.op == "call_module" and _plain(layers[node.target], nn.ReLU6) and len(node.args) == 1:
            value = node.args[0]
            if layers[node.target].inplace:
                continue
        else:
            continue
        with gm.graph.inserting_before(node):
            legal = spell(gm.graph, value)
        node.replace_all_uses_with(legal)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The gradient of clamp is 1 exactly at the bounds, the one of relu6 is 0: wrong gradients in programs "
    "whose activations hit 0 or 6 exactly (zero inputs, zero initial weights, quantized values).",
)
def legalize_relu6(gm: fx.GraphModule):
    """Spell ReLU6 with an operator that the target has."""
    return _legalize(gm, lambda graph, value: graph.call_function(torch.clamp, (value, 0, 6)))
