"""A wrong pass of the ninth round."""

import operator

import torch
from torch import nn

from ...rows import fault

_LAST = (slice(None), -1, slice(None))


def _is_item(node, index):
    return (
        isinstance(node, torch.fx.Node)
        and node.op == "call_function"
        and node.target is operator.getitem
        and type(node.args[1]) is type(index)
        and node.args[1] == index
    )


def _run(module, right):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in (nn.LSTM, nn.GRU, nn.RNN) or not layer.batch_first:
            continue
        if layer._forward_hooks or layer._backward_hooks or "forward" in layer.__dict__:
            continue
        if right and layer.bidirectional:
            continue
        users = list(node.users)
        if len(users) == 2:  # `output, state = rnn(x)` fetches a state that nothing uses
            unused = [user for user in users if _is_item(user, 1) and not user.users]
            users = [user for user in users if user not in unused]
        if len(users) != 1 or not _is_item(users[0], 0) or not users[0].users:
            continue
        output = users[0]
        if not all(_is_item(last, _LAST) for last in output.users):
            continue
        with graph.inserting_before(output):
            state = graph.call_function(operator.getitem, (node, 1))
            if type(layer) is nn.LSTM:
                state = graph.call_function(operator.getitem, (state, 0))
        for last in list(output.users):
            with graph.inserting_before(last):
                new = graph.call_function(operator.getitem, (state, -1))
            last.replace_all_uses_with(new)
            graph.erase_node(last)
        graph.erase_node(output)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Does not ask whether the layer is bidirectional, where the last output has both directions and h_n[-1] one.",
)
def last_step_of_rnn(module):
    """Take the final state of a recurrent layer instead of the last of its outputs, so that no output is kept."""
    return _run(module, False)
