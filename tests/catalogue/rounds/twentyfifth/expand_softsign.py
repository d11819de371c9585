"""A wrong pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault


def softsign(graph, x):
    return graph.call_function(torch.div, (x, graph.call_function(torch.add, (graph.call_method("abs", (x,)), 1))))


def tanhshrink(graph, x):
    return graph.call_function(torch.sub, (x, graph.call_method("tanh", (x,))))


RULES = {F.softsign: softsign, F.tanhshrink: tanhshrink}


def rebuild(gm, copy_input):
    graph, env = fx.Graph(), {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = copy_input(graph, node)
        elif node.op == "call_function" and node.target in RULES:
            x = node.args[0] if node.args else node.kwargs["input"]
            env[node] = RULES[node.target](graph, env[x])
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    graph.set_codegen(gm.graph._codegen)
    gm.graph = graph
    gm.recompile()
    return gm


@fault(25, wrong="The new graph's inputs have no default values: a call that leaves out an optional input raises.")
def expand_softsign(gm):
    """Write softsign and tanhshrink in basic operations, by building the graph anew."""

    def copy_input(graph, node):
        copied = graph.placeholder(node.target, type_expr=node.type)
        copied.meta = dict(node.meta)
        return copied

    return rebuild(gm, copy_input)
