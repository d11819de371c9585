"""A right pass of the ninth round."""

import torch

from ...rows import sound


@sound(9)
def stack_to_cat(module):
    """Write torch.stack of a list as torch.cat of what has the new dimension, for runtimes without stack."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.stack or set(node.kwargs) - {"tensors", "dim"}:
            continue
        tensors = node.args[0] if node.args else node.kwargs.get("tensors")
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if type(dim) is not int or not isinstance(tensors, (list, tuple)) or not tensors:
            continue
        if not all(isinstance(tensor, torch.fx.Node) for tensor in tensors):
            continue
        with graph.inserting_before(node):
            parts = [graph.call_function(torch.unsqueeze, (tensor, dim)) for tensor in tensors]
            new = graph.call_function(torch.cat, (parts, dim))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
