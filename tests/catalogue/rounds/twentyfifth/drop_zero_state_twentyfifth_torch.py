"""A right pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import writes


def is_zeros(node, call):
    """Zeros that nobody but ``call`` reads."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not torch.zeros:
        return False
    return set(node.users) == {call} and not set(node.kwargs) - {"dtype", "device"}


@sound(25)
def drop_zero_state_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Let recurrent layers make their initial state: drop a state of zeros that is made for the call."""
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        module = gm.get_submodule(node.target) if node.op == "call_module" else None
        if type(module) not in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN) or len(node.args) != 2 or node.kwargs:
            continue
        states = node.args[1]
        states = states if isinstance(states, (tuple, list)) else (states,)
        if not all(is_zeros(state, node) for state in states):
            continue
        node.args = node.args[:1]
        for state in dict.fromkeys(states):
            gm.graph.erase_node(state)
    gm.recompile()
    return gm
