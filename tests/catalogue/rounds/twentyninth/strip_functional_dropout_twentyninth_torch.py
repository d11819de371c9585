"""A wrong pass of the twentyninth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _option(node, name, position, default):
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _strip(gm, idle):
    if gm.training:
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout or not idle(node):
            continue
        source = _option(node, "input", 0, None)
        if not isinstance(source, torch.fx.Node):
            continue
        node.replace_all_uses_with(source)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(29, wrong="F.dropout(x, p) drops in eval mode too, since its argument training is True unless given.")
def strip_functional_dropout_twentyninth(gm: torch.fx.GraphModule):
    """Take the calls of F.dropout out of a model in eval mode, where dropout does nothing."""
    return _strip(gm, lambda node: True)
