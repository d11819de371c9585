"""A wrong pass of the thirtysecond round."""

import operator

import torch.fx
from torch import nn

from ...rows import fault
from .shared import calls, erase_unused, has_writes, replace


@fault(
    32,
    wrong="The backward direction ends at the first step, not at the last one. Shows in a classifier on h[-1] of a bidirectional GRU or LSTM; with one direction it is right (any layers, batch_first, no batch, proj_size).",
)
def read_last_state_from_sequence(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Read the last hidden state h[-1] of a recurrent layer from its output sequence, to drop the second result."""
    graph = graph_module.graph
    if has_writes(graph_module):
        return graph_module
    for node in list(graph.nodes):
        if not calls(node, (operator.getitem,)) or node.args[1] != -1:
            continue
        state = node.args[0]
        lstm_states = None
        if not calls(state, (operator.getitem,)):
            continue
        layer = state.args[0]
        if state.args[1] == 0 and calls(layer, (operator.getitem,)) and layer.args[1] == 1:
            lstm_states, layer = layer, layer.args[0]
        elif state.args[1] != 1:
            continue
        if getattr(layer, "op", None) != "call_module":
            continue
        rnn = graph_module.get_submodule(layer.target)
        if type(rnn) not in (nn.LSTM, nn.GRU, nn.RNN) or isinstance(rnn, nn.LSTM) != (lstm_states is not None):
            continue
        width = rnn.proj_size or rnn.hidden_size
        with graph.inserting_before(node):
            sequence = graph.call_function(operator.getitem, (layer, 0))
            last = graph.call_method("select", (sequence, -2 if rnn.batch_first else 0, -1))
            if rnn.bidirectional:
                last = graph.call_method("narrow", (last, -1, width, width))
        replace(node, last)
        erase_unused(state)
        if lstm_states is not None:
            erase_unused(lstm_states)
    graph_module.recompile()
    return graph_module
