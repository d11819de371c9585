"""A wrong pass of the twentyfourth round."""

import torch

import fx

from ...rows import fault

ACTIVATIONS = (torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.nn.functional.gelu)


def _hoist(gm, may_move):
    graph = gm.graph
    for node in graph.find_nodes(op="call_method", target="detach"):
        if len(node.args) != 1 or node.kwargs:
            continue
        activation = node.args[0]
        if activation.op != "call_function" or activation.target not in ACTIVATIONS:
            continue
        if activation.kwargs.get("out") is not None or not may_move(activation):
            continue
        source = activation.args[0]
        if not isinstance(source, fx.Node):
            continue
        with graph.inserting_before(activation):
            detached = graph.call_method("detach", (source,))
        activation.args = (detached, *activation.args[1:])
        node.replace_all_uses_with(activation)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(24, wrong="The activation's other users lose their gradient: the detached input is given to the shared node.")
def hoist_detach(gm):
    """Move each detach in front of the activation that it follows."""
    return _hoist(gm, lambda activation: True)
