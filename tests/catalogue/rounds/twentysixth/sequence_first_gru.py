"""A wrong pass of the twentysixth round."""

import copy
import operator

from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


def _sequence_first(gru):
    turned = copy.copy(gru)  # with the parameters themselves, in dictionaries of its own
    turned.__dict__.update({k: copy.copy(v) for k, v in turned.__dict__.items() if isinstance(v, dict)})
    turned.batch_first = False
    return turned


def _channels_last(node):
    """x.permute(0, 2, 1), read once."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return False
    return node.args[1:] in ((0, 2, 1), ((0, 2, 1),)) and len(node.users) == 1


def _rewrite(gm, which):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not _channels_last(node.args[0]):
            continue
        gru = gm.get_submodule(node.target)
        if type(gru) is not nn.GRU or not gru.batch_first or _hooked(gru):
            continue
        if sum(m is gru for _, m in gm.named_modules(remove_duplicate=False)) != 1:
            continue
        if sum(n.op == "call_module" and n.target == node.target for n in gm.graph.nodes) != 1:
            continue
        parts = list(node.users)
        if any(p.target is not operator.getitem or p.args[1:] not in ((0,), (1,)) for p in parts):
            continue
        gm.add_submodule(node.target, _sequence_first(gru))
        turn = node.args[0]
        turn.args = (turn.args[0], 2, 0, 1)
        for part in parts:
            if part.args[1] not in which:
                continue
            with gm.graph.inserting_after(part):
                back = gm.graph.call_method("transpose", (part, 0, 1))
            part.replace_all_uses_with(back)
            back.args = (part, 0, 1)
    gm.recompile()
    return gm


@fault(
    26, wrong="Turns the final hidden state back as it does the outputs, although batch_first says nothing about it."
)
def sequence_first_gru(gm: fx.GraphModule):
    """Run a batch_first GRU behind a permute sequence first: the two changes of the layout become one."""
    return _rewrite(gm, (0, 1))
