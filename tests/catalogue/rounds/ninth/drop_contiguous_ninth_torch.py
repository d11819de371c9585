"""A wrong pass of the ninth round."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault

_CONTIGUOUS_MODULES = {nn.Embedding}


_CONTIGUOUS_FUNCTIONS = {F.embedding, torch.embedding}


_ELEMENTWISE = {torch.relu, torch.sigmoid, torch.tanh, torch.exp, F.relu, F.gelu, F.silu}


def _is_contiguous(module, node, right):
    if not isinstance(node, torch.fx.Node):
        return False
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        return type(layer) in _CONTIGUOUS_MODULES and not layer._forward_hooks and "forward" not in layer.__dict__
    if node.op == "call_method":
        return node.target == "contiguous" and len(node.args) == 1 and not node.kwargs
    if node.op != "call_function" or node.kwargs.get("inplace") or any(arg is True for arg in node.args):
        return False
    if node.target in _CONTIGUOUS_FUNCTIONS:
        return True
    return not right and node.target in _ELEMENTWISE  # they allocate their result


def _changes_strides(node):
    return node.op == "call_method" and node.target in {
        "t_",
        "transpose_",
        "swapaxes_",
        "swapdims_",
        "resize_",
        "set_",
        "as_strided_",
        "squeeze_",
        "unsqueeze_",
    }


def _run(module, right):
    graph = module.graph
    if any(_changes_strides(node) for node in graph.nodes):
        return module
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "contiguous" or len(node.args) != 1 or node.kwargs:
            continue
        if _is_contiguous(module, node.args[0], right):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes results of elementwise functions as contiguous, but they have the strides of their operand.")
def drop_contiguous_ninth(module):
    """Drop contiguous() of what is contiguous anyway: results in memory of their own."""
    return _run(module, False)
