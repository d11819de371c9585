"""A wrong pass of the eighth round."""

import operator

from torch import nn

import fx

from ...rows import fault


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or node.kwargs:
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in (nn.RNN, nn.GRU, nn.LSTM) or "forward" in vars(layer) or not accepts(layer):
            continue
        if layer._forward_hooks or layer._forward_pre_hooks:
            continue
        if any(user.target is not operator.getitem or user.args[1] not in (0, 1) for user in node.users):
            continue
        read = [user for user in node.users if user.users]
        if len(read) != 1 or read[0].args[1] != 0 or len(read[0].users) != 1:
            continue
        (last,) = read[0].users
        wanted = (slice(None), -1, slice(None)) if layer.batch_first else -1
        if last.target is not operator.getitem or last.args[0] is not read[0] or last.args[1] != wanted:
            continue
        with graph.inserting_before(last):
            state = graph.call_function(operator.getitem, (node, 1))
            if type(layer) is nn.LSTM:
                state = graph.call_function(operator.getitem, (state, 0))
            final = graph.call_function(operator.getitem, (state, -1))
        last.replace_all_uses_with(final)
        graph.erase_node(last)
        graph.erase_node(read[0])
    module.recompile()
    return module


@fault(
    8,
    wrong="It is not asked whether the layer runs in both directions: then a step is the states of both behind each other.",
)
def last_step_to_hidden(module: fx.GraphModule) -> fx.GraphModule:
    """Read the final state of a recurrent layer where only the last step of its outputs is used."""
    return _rewrite(module, lambda layer: True)
