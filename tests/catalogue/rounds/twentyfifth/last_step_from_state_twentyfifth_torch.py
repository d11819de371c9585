"""A wrong pass of the twentyfifth round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import hooked, writes

LAST = (slice(None, None, None), -1, slice(None, None, None))


def item(node, index):
    return node.op == "call_function" and node.target is operator.getitem and node.args[1] == index


def is_linear(gm, node):
    if node.op != "call_module":
        return False
    module = gm.get_submodule(node.target)
    return type(module) is torch.nn.Linear and not hooked(module)


def rewrite(gm, accepts):
    if writes(gm):
        return gm
    graph = gm.graph
    for call in list(graph.nodes):
        module = gm.get_submodule(call.target) if call.op == "call_module" else None
        if type(module) not in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN) or hooked(module):
            continue
        if not module.batch_first or not accepts(module):
            continue
        for steps in [user for user in call.users if item(user, 0)]:
            for last in list(steps.users):
                # readers that do not care how the tensor lies in memory
                if not item(last, LAST) or not last.users or not all(is_linear(gm, user) for user in last.users):
                    continue
                with graph.inserting_before(last):
                    state = graph.call_function(operator.getitem, (call, 1))
                    if type(module) is torch.nn.LSTM:
                        state = graph.call_function(operator.getitem, (state, 0))
                    state = graph.call_function(operator.getitem, (state, -1))
                last.replace_all_uses_with(state)
                graph.erase_node(last)
            if not steps.users:
                graph.erase_node(steps)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="In a bidirectional layer the last step holds two directions, the last entry of the state only one, of another step.",
)
def last_step_from_state_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Take the last step of a recurrent layer from its final state, so that the outputs of all steps need not be kept."""
    return rewrite(gm, lambda module: True)
