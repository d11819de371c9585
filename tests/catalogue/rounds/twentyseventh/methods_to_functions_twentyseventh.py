"""A right pass of the twentyseventh round."""

import torch

from ...rows import sound

NAMES = ("relu", "sigmoid", "tanh", "exp", "abs", "neg", "sqrt", "rsqrt", "sin", "cos")


FUNCTIONS = {name + suffix: getattr(torch, name + suffix) for name in NAMES for suffix in ("", "_")}


@sound(27)
def methods_to_functions_twentyseventh(gm):
    """Activations called as methods become functions, in-place ones too, so that a pattern has one form to match."""
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target not in FUNCTIONS or len(node.args) != 1 or node.kwargs:
            continue
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(FUNCTIONS[node.target], node.args)
        node.replace_all_uses_with(call)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
