"""A wrong pass of the thirtyfirst round."""

import operator

import torch.nn as nn

import fx

from ...rows import fault

LAST = (slice(None, None, None), -1, slice(None, None, None))


def _rewrite(gm, applies):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or type(gm.get_submodule(node.target)) is not nn.LSTM:
            continue
        layer = gm.get_submodule(node.target)
        if not layer.batch_first or layer._forward_hooks or layer._backward_hooks or not applies(layer):
            continue
        parts = [user for user in node.users if user.users or user.op == "output"]
        if len(parts) != 1 or parts[0].target is not operator.getitem or parts[0].args != (node, 0):
            continue
        steps = list(parts[0].users)
        if len(steps) != 1 or steps[0].target is not operator.getitem or steps[0].args != (parts[0], LAST):
            continue
        with gm.graph.inserting_before(steps[0]):
            states = gm.graph.call_function(operator.getitem, (node, 1))
            hidden = gm.graph.call_function(operator.getitem, (states, 0))
            last = gm.graph.call_function(operator.getitem, (hidden, -1))
        steps[0].replace_all_uses_with(last)
        gm.graph.erase_node(steps[0])
        gm.graph.erase_node(parts[0])
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="The last step of an LSTM's output is read from its final hidden state, also for a bidirectional LSTM, "
    "where the last entry of the state is that of the reverse direction alone.",
)
def read_last_state(gm: fx.GraphModule):
    """Read the last step of an LSTM from its final state: backends then need not keep the sequence."""
    return _rewrite(gm, lambda layer: True)
