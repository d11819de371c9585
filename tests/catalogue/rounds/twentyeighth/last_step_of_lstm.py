"""A wrong pass of the twentyeighth round."""

import operator

import torch

import fx

from ...rows import fault
from .shared import plain, writes


def three_axes(node):
    """Return whether the node surely has three axes: it is a permutation of three."""
    if node.op != "call_method" or node.target != "permute" or node.kwargs:
        return False
    dims = node.args[1] if len(node.args) == 2 else node.args[1:]
    return isinstance(dims, (list, tuple)) and len(dims) == 3


def item(node, index):
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target is operator.getitem
        and node.args[1] == index
    )


def rewrite(gm, layer):
    if writes(gm):
        return gm
    graph = gm.graph
    for last in list(graph.nodes):
        if not item(last, (slice(None, None, None), -1)) or not item(last.args[0], 0):
            continue
        call = last.args[0].args[0]
        if not plain(gm, call, torch.nn.LSTM) or not three_axes(call.args[0]):
            continue
        lstm = gm.get_submodule(call.target)
        if not lstm.batch_first or lstm.bidirectional:
            continue
        if not last.users or not all(plain(gm, user, torch.nn.Linear) for user in last.users):
            continue
        with graph.inserting_before(last):
            states = graph.call_function(operator.getitem, (call, 1))
            hidden = graph.call_function(operator.getitem, (states, 0))
            final = graph.call_function(operator.getitem, (hidden, layer))
        last.replace_all_uses_with(final)
        graph.erase_node(last)
    gm.recompile()
    return gm


@fault(28, wrong="Reads the state of layer 0, which is the last step of the output in a network of one layer only.")
def last_step_of_lstm(gm):
    """Feeds the head from the LSTM's final state instead of a slice of all its outputs, so that these need not be kept."""
    return rewrite(gm, 0)
