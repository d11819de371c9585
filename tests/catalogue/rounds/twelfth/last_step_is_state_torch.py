"""A wrong pass of the twelfth round."""

import operator

import torch
from torch import nn

from ...rows import fault


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _run(gm, both_directions):
    graph, mods = gm.graph, dict(gm.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.target is not operator.getitem or node.args[1] != (slice(None), -1, slice(None)):
            continue
        output = node.args[0]
        if not isinstance(output, torch.fx.Node) or output.target is not operator.getitem or output.args[1] != 0:
            continue
        call = output.args[0]
        layer = mods.get(call.target) if call.op == "call_module" else None
        if type(layer) not in (nn.LSTM, nn.GRU) or not layer.batch_first or _hooked(layer):
            continue
        if len(output.users) != 1 or any(user.users for user in call.users if user is not output):
            continue
        if layer.bidirectional and not both_directions:
            continue
        with graph.inserting_before(node):
            state = graph.call_function(operator.getitem, (call, 1))
            if type(layer) is nn.LSTM:
                state = graph.call_function(operator.getitem, (state, 0))
            last = graph.call_function(operator.getitem, (state, -1))
            if layer.bidirectional:
                forward = graph.call_function(operator.getitem, (state, -2))
                last = graph.call_function(torch.cat, ([forward, last],), {"dim": -1})
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        graph.erase_node(output)
    gm.recompile()
    return gm


@fault(
    12,
    wrong="Of a bidirectional layer the final state of the backward direction belongs to the first step, not to the last.",
)
def last_step_is_state(module):
    """Take the last step of a recurrent layer from its final state, so that the sequence need not be written."""
    return _run(module, True)
