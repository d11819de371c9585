"""A right pass of the ninth round."""

import operator

import torch

import fx
from fx.analysis.dependence import Dependences

from ...rows import sound

_FUNCTIONS = {
    torch.add,
    torch.mul,
    torch.sub,
    torch.matmul,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    operator.add,
    operator.sub,
    operator.mul,
    operator.matmul,
}


@sound(9)
def merge_repeated_calls(module: fx.GraphModule) -> fx.GraphModule:
    """Compute once what the program computes again from the same values, without literals and keywords."""
    graph = module.graph
    dependences = Dependences(graph)
    first_of_key, replaced, gone = {}, {}, []
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _FUNCTIONS or node.kwargs or not node.args:
            continue
        if not all(isinstance(arg, fx.Node) for arg in node.args):
            continue
        key = (node.target, *(replaced.get(arg, arg) for arg in node.args))
        first = first_of_key.setdefault(key, node)
        if first is node:
            continue
        if dependences.why_not_merge(first, node) is None:
            dependences.merged(first, node)
            replaced[node] = first
            gone.append((node, first))
        else:
            first_of_key[key] = node
    for node, first in gone:
        node.replace_all_uses_with(first)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
