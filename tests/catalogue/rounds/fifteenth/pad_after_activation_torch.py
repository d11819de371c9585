"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault

KEEP_ZERO = (torch.tanh, torch.relu)


@fault(15, wrong="The value that is padded with is not looked at: the activation of another value is not that value.")
def pad_after_activation(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Move an activation with f(0) = 0 before the zero pad of its input, so that it has less to compute."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in KEEP_ZERO or len(node.args) != 1 or node.kwargs:
            continue
        pad = node.args[0]
        if pad.op != "call_function" or pad.target is not F.pad or len(pad.users) != 1 or pad.next is not node:
            continue
        if len(pad.args) != 2 or pad.kwargs.get("mode", "constant") != "constant":
            continue
        with graph_module.graph.inserting_before(pad):
            new = graph_module.graph.call_function(node.target, (pad.args[0],))
        pad.args = (new, *pad.args[1:])
        node.replace_all_uses_with(pad)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
