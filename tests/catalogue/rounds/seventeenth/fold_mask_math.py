"""A wrong pass of the seventeenth round."""

import operator

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write

FOLDED = {operator.eq, operator.ne, operator.lt, operator.gt, operator.le, operator.ge, torch.logical_not}


READERS = {torch.where, torch.logical_and, torch.logical_or, operator.mul, operator.add, torch.mul, torch.add}


def _fold(graph_module: GraphModule, careful: bool) -> GraphModule:
    if graph_module.training or careful and may_write(graph_module):
        return graph_module
    buffers = dict(graph_module.named_buffers(remove_duplicate=False))
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in FOLDED or node.kwargs:
            continue
        operands = [arg for arg in node.args if isinstance(arg, Node)]
        if not operands or not all(arg.op == "get_attr" and arg.target in buffers for arg in operands):
            continue
        if not all(isinstance(arg, Node) or type(arg) in (int, float, bool) for arg in node.args):
            continue
        if not node.users or not all(u.op == "call_function" and u.target in READERS for u in node.users):
            continue  # the readers could tell a fresh tensor from a stored one
        with torch.no_grad():
            value = node.target(*[buffers[arg.target] if isinstance(arg, Node) else arg for arg in node.args])
        name = f"_folded_{node.name}"
        if hasattr(graph_module, name) or not isinstance(value, torch.Tensor):
            continue
        graph_module.register_buffer(name, value.clone(), persistent=False)
        with graph_module.graph.inserting_before(node):
            constant = graph_module.graph.get_attr(name)
        node.replace_all_uses_with(constant)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="A buffer counts as constant though the program writes to it.")
def fold_mask_math(graph_module: GraphModule) -> GraphModule:
    """Compute masks that depend on buffers only once, beforehand, in evaluation."""
    return _fold(graph_module, careful=False)
