"""A wrong pass of the thirtieth round."""

import torch.nn as nn

import fx

from ...rows import fault
from .shared import _plain


def _zeros(node, value):
    """Zeros of the dtype of the layer's input that nothing but the layer reads."""
    if not isinstance(node, fx.Node) or len(node.users) != 1 or node.kwargs:
        return False
    return node.op == "call_method" and node.target == "new_zeros" and node.args[0] is value


def _drop(gm, parts):
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.LSTM) or len(node.args) != 2 or node.kwargs:
            continue
        value, state = node.args
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            continue
        if not all(_zeros(part, value) for part in state[:parts]):
            continue
        node.args = (value,)
        for part in dict.fromkeys(state):
            if part.op == "call_method" and part.target == "new_zeros" and not part.users:
                gm.graph.erase_node(part)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="Only the first part of the initial state is looked at: an LSTM that starts from a zero hidden state and "
    "a given cell state loses the cell state.",
)
def drop_zero_state_thirtieth(gm: fx.GraphModule):
    """Remove a zero initial state of an LSTM, which is its default, so that the importer sees a stateless layer."""
    return _drop(gm, 1)
