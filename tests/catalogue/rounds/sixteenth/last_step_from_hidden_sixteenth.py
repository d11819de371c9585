"""A wrong pass of the sixteenth round."""

import operator

from torch import nn

from fx import GraphModule

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    everything = slice(None, None, None)
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.users) != 1:
            continue
        layer = modules[node.target]
        if not (_plain(layer, nn.GRU) or _plain(layer, nn.RNN)) or not layer.batch_first:
            continue
        if careful and layer.bidirectional:
            continue
        (sequence,) = node.users
        if sequence.target is not operator.getitem or sequence.args != (node, 0) or len(sequence.users) != 1:
            continue
        (last,) = sequence.users
        if last.target is not operator.getitem or last.args[0] is not sequence:
            continue
        if last.args[1] != (everything, -1, everything) or sequence.prev is not node or last.prev is not sequence:
            continue
        sequence.args = (node, 1)
        last.args = (sequence, -1)
    return finish(graph_module)


@fault(16, wrong="In a bidirectional layer the final hidden state is that of one direction only.")
def last_step_from_hidden_sixteenth(graph_module: GraphModule) -> GraphModule:
    """Takes the last step of a recurrent layer's output sequence from its final hidden state, so that the sequence need not be kept."""
    return _rewrite(graph_module, careful=False)
