"""A wrong pass of the twentyseventh round."""

import operator

from torch import nn

from ...rows import fault
from .shared import _hooked


def _switch_off(gm, weight_items):
    modules = dict(gm.named_modules())
    for node in gm.graph.nodes:
        if node.op != "call_module":
            continue
        layer = modules[node.target]
        if type(layer) is not nn.MultiheadAttention or _hooked(layer) or layer.dropout:
            continue
        if len(node.args) != 3 or node.kwargs:  # masks and options: left as they are
            continue
        readers = list(node.users)
        if not all(r.target is operator.getitem and type(r.args[1]) is int for r in readers):
            continue
        if any(r.args[1] in weight_items and r.users for r in readers):
            continue
        node.kwargs = {"need_weights": False}
    gm.recompile()
    return gm


@fault(27, wrong="It looks for readers of item 1 only; a program that takes the weights as item -1 gets None.")
def drop_attention_weights(gm):
    """Attention layers whose averaged weights nobody reads are called with need_weights=False, which picks the fast kernel."""
    return _switch_off(gm, weight_items=(1,))
