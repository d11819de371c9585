"""A right pass of the twelfth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound


def _opened(graph, name, cell, x, h):
    """Write the steps of a cell and return the new state."""
    parameters = {}
    for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        parameters[part] = graph.get_attr(f"{name}.{part}") if getattr(cell, part) is not None else None
    gates = []
    for source, end in ((x, "ih"), (h, "hh")):
        both = graph.call_function(F.linear, (source, parameters[f"weight_{end}"], parameters[f"bias_{end}"]))
        parts = graph.call_function(torch.chunk, (both, 3), {"dim": -1})
        gates.append([graph.call_function(operator.getitem, (parts, index)) for index in range(3)])
    sums = [graph.call_function(operator.add, (gates[0][index], gates[1][index])) for index in range(2)]
    reset, update = (graph.call_function(torch.sigmoid, (total,)) for total in sums)
    reset_part = graph.call_function(operator.mul, (reset, gates[1][2]))
    new = graph.call_function(torch.tanh, (graph.call_function(operator.add, (gates[0][2], reset_part)),))
    difference = graph.call_function(operator.sub, (h, new))
    return graph.call_function(operator.add, (graph.call_function(operator.mul, (difference, update)), new))


@sound(12)
def open_gru_cell(module: fx.GraphModule) -> fx.GraphModule:
    """Open GRU cells that are given a state into linear layers and gates, for backends without recurrent operators."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 2 or node.kwargs:
            continue
        cell, (x, h) = module.get_submodule(node.target), node.args
        if type(cell) is not nn.GRUCell or "forward" in vars(cell):
            continue
        if cell._forward_hooks or cell._forward_pre_hooks or cell._backward_hooks or cell._backward_pre_hooks:
            continue
        if not isinstance(x, fx.Node) or not isinstance(h, fx.Node) or (h.op == "placeholder" and h.args):
            continue  # without a state it starts from zeros
        with graph.inserting_before(node):
            state = _opened(graph, node.target, cell, x, h)
        node.replace_all_uses_with(state)
        graph.erase_node(node)
    module.recompile()
    return module
