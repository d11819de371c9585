"""A right pass of the thirteenth round."""

import torch

from fx import GraphModule

from ...rows import sound


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


FUNCTIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "neg": torch.neg, "exp": torch.exp}


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or len(node.args) != 1 or node.kwargs or node.target not in FUNCTIONS:
            continue
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(FUNCTIONS[node.target], node.args)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@sound(13)
def methods_to_functions(graph_module: GraphModule) -> GraphModule:
    """Writes activations that are called as methods as functions."""
    return _rewrite(graph_module)
