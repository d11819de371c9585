"""A wrong pass of the eighth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import fault


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if not (node.op == "call_method" and node.target == "flatten" or node.target is torch.flatten):
            continue
        stack = node.args[0] if node.args else None
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
        if not isinstance(stack, Node) or stack.target is not torch.stack or start != -2 or end != -1:
            continue
        if len(stack.users) != 1 or node.prev is not stack or "out" in stack.kwargs or not stack.args:
            continue
        copies = stack.args[0]
        dim = stack.args[1] if len(stack.args) > 1 else stack.kwargs.get("dim", 0)
        if not isinstance(copies, (list, tuple)) or not copies or not isinstance(copies[0], Node):
            continue
        if any(copy is not copies[0] for copy in copies) or not accepts(dim):
            continue
        with graph.inserting_before(node):
            doubled = graph.call_function(torch.repeat_interleave, (copies[0], len(copies)), {"dim": -1})
        node.replace_all_uses_with(doubled)
        graph.erase_node(node)
        graph.erase_node(stack)
    module.recompile()
    return module


@fault(
    8,
    wrong="It is not asked that the copies are stacked along the last dimension: along the one before they follow each other.",
)
def stack_flatten_to_interleave(module: GraphModule) -> GraphModule:
    """Replace `stack((x, x), dim).flatten(-2)`, as rotary embeddings have it, by `repeat_interleave`."""
    return _rewrite(module, lambda dim: True)
