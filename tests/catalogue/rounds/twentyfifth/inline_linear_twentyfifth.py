"""A wrong pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

from ...rows import fault


def inline(gm, accepts):
    graph = gm.graph
    for node in list(graph.find_nodes(op="call_module")):
        module = gm.get_submodule(node.target)
        if type(module) is not torch.nn.Linear or "forward" in vars(module) or not accepts(module):
            continue
        x = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if module.bias is None else graph.get_attr(f"{node.target}.bias")
            result = graph.call_function(F.linear, (x, weight, bias))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="Hooks of a module (weight norm, scaling, adapters) run when it is called; the function does not run them.",
)
def inline_linear_twentyfifth(gm):
    """Call F.linear on the weights in place of nn.Linear modules, as input to a quantizer of functions."""
    return inline(gm, lambda module: True)
