"""A wrong pass of the twentyseventh round."""

import copy
import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import _hooked

LAYERS = (nn.LSTM, nn.GRU, nn.RNN)


def _swaps(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return False
    return tuple(node.args[1:]) in ((1, 0, 2), ((1, 0, 2),), ([1, 0, 2],))


def _use(gm, may_change):
    for node in list(gm.graph.nodes):
        layer = gm.get_submodule(node.target) if node.op == "call_module" else None
        if type(layer) not in LAYERS or layer.batch_first or _hooked(layer) or not node.args or node.kwargs:
            continue
        before = node.args[0]
        if not _swaps(before) or node.prev is not before or not may_change(gm, node):
            continue
        if not all(u.target is operator.getitem and u.args[1] in (0, 1) for u in node.users):
            continue
        outputs = [u for u in node.users if u.args[1] == 0]
        if len(outputs) != 1 or len(outputs[0].users) != 1:
            continue
        after = next(iter(outputs[0].users))
        if not _swaps(after):
            continue
        changed = copy.copy(layer)  # the parameters are the same ones; the caller's layer stays as it is
        changed.batch_first = True
        parent, _, name = node.target.rpartition(".")
        setattr(gm.get_submodule(parent), name, changed)
        node.args = (before.args[0], *node.args[1:])
        after.replace_all_uses_with(outputs[0])
        gm.graph.erase_node(after)
        if not before.users:
            gm.graph.erase_node(before)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    27, wrong="The option belongs to the layer: another call of the same layer, without the permutes, changes with it."
)
def use_batch_first(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A recurrent layer between two permutes takes batch_first instead of them."""
    return _use(gm, lambda gm, node: True)
