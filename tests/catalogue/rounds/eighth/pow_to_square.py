"""A wrong pass of the eighth round."""

import torch

import fx

from ...rows import fault


def _rewrite(module, is_two):
    graph = module.graph
    for node in list(graph.nodes):
        if not (
            node.op == "call_function" and node.target is torch.pow or node.op == "call_method" and node.target == "pow"
        ):
            continue
        arguments = dict(zip(("input", "exponent"), node.args), **node.kwargs)
        if set(arguments) != {"input", "exponent"} or not isinstance(arguments["input"], fx.Node):
            continue
        if isinstance(arguments["exponent"], fx.Node) or not is_two(arguments["exponent"]):
            continue
        with graph.inserting_before(node):
            square = graph.call_function(torch.square, (arguments["input"],))
        node.replace_all_uses_with(square)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(8, wrong="The exponent is compared by value: 2.0 equals 2, but makes a floating result of integers.")
def pow_to_square(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the second power of a tensor by `torch.square`."""
    return _rewrite(module, lambda exponent: exponent == 2)
