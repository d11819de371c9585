"""A wrong pass of the twentyninth round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _pointwise(gm, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    conv = gm.get_submodule(node.target)
    if type(conv) is not nn.Conv1d or any(getattr(conv, hooks, None) for hooks in _HOOKS):
        return None
    return conv if conv.kernel_size == (1,) and conv.padding == (0,) and conv.groups == 1 else None


def _rewrite(gm, accepts):
    graph = gm.graph
    for node in list(graph.nodes):
        conv = _pointwise(gm, node)
        if conv is None or not accepts(conv):
            continue
        with graph.inserting_before(node):
            kernel = graph.call_method("squeeze", (graph.get_attr(f"{node.target}.weight"), -1))
            new = graph.call_function(torch.matmul, (kernel, node.args[0]))
            if conv.bias is not None:
                bias = graph.call_method("unsqueeze", (graph.get_attr(f"{node.target}.bias"), -1))
                new = graph.call_function(torch.add, (new, bias))
            new = graph.call_method("clone", (new,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(29, wrong="A convolution of kernel 1 can have a stride, and then leaves positions out.")
def pointwise_conv_to_matmul(gm: torch.fx.GraphModule):
    """Replace a Conv1d of kernel 1 by a matrix product, for a device that has no convolution over time."""
    return _rewrite(gm, lambda conv: True)
