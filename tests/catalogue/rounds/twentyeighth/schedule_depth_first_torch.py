"""A wrong pass of the twentyeighth round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import plain

MODULES = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.LayerNorm, torch.nn.ReLU, torch.nn.GELU, torch.nn.Tanh)


FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.matmul,
    torch.add,
    torch.mul,
    torch.cat,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    F.gelu,
}


def movable(gm, node, modules):
    """Return whether the node has no effect but its result, and depends on its arguments only."""
    if node.op == "call_module":
        return plain(gm, node, *modules) and not getattr(gm.get_submodule(node.target), "inplace", False)
    if node.op == "call_function":
        return node.target in FUNCTIONS and set(node.kwargs) <= {"dim", "alpha"}
    return node.op in ("placeholder", "get_attr", "output")


def reorder(gm, modules):
    if not all(movable(gm, node, modules) for node in gm.graph.nodes):
        return gm
    graph, copies = torch.fx.Graph(), {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.node_copy(node)
    stack = [node for node in gm.graph.nodes if node.op == "output"]
    while stack:
        waiting = [source for source in stack[-1].all_input_nodes if source not in copies]
        if waiting:
            stack.append(waiting[-1])  # the last operand first
        else:
            node = stack.pop()
            copies[node] = graph.node_copy(node, lambda source: copies[source])
    gm.graph = graph
    gm.recompile()
    return gm


@fault(28, wrong="Moves dropouts past each other, which then draw each other's random numbers in training.")
def schedule_depth_first(gm: torch.fx.GraphModule):
    """Reorders the program depth first from its result, so that intermediate tensors live shorter."""
    return reorder(gm, MODULES + (torch.nn.Dropout,))
