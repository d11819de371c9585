"""A wrong pass of the twentyninth round."""

import operator

import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _is_item(node, index):
    return node.op == "call_function" and node.target is operator.getitem and node.args[1] == index


def _take(gm, accepts):
    for lstm in list(gm.graph.nodes):
        if lstm.op != "call_module":
            continue
        module = gm.get_submodule(lstm.target)
        if type(module) is not nn.LSTM or any(getattr(module, hooks, None) for hooks in _HOOKS):
            continue
        if module.bidirectional or not accepts(module):
            continue
        parts = list(lstm.users)
        if len(parts) != 1 or not _is_item(parts[0], 0):
            continue
        lasts = list(parts[0].users)
        if len(lasts) != 1 or not _is_item(lasts[0], (slice(None), -1, slice(None))):
            continue
        last = lasts[0]
        with gm.graph.inserting_before(last):
            states = gm.graph.call_function(operator.getitem, (lstm, 1))
            hidden = gm.graph.call_function(operator.getitem, (states, 0))
            top = gm.graph.call_function(operator.getitem, (hidden, -1))
        last.replace_all_uses_with(top)
        gm.graph.erase_node(last)
        gm.graph.erase_node(parts[0])
    gm.recompile()
    return gm


@fault(29, wrong="out[:, -1, :] is the last step only with batch_first; without, it is the last sequence of the batch.")
def last_state_of_lstm(gm):
    """Take the last step of an LSTM's output from its hidden state, so that a runtime need not keep the sequence."""
    return _take(gm, lambda module: True)
