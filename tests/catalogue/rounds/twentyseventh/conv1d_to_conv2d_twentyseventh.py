"""A wrong pass of the twentyseventh round."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked


def _convert(gm, height):
    modules = dict(gm.named_modules())
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        conv = modules[node.target]
        if type(conv) is not nn.Conv1d or _hooked(conv):
            continue
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            continue
        with graph.inserting_before(node):
            image = graph.call_method("unsqueeze", (node.args[0], height))
            kernel = graph.call_method("unsqueeze", (graph.get_attr(f"{node.target}.weight"), 2))
            bias = None if conv.bias is None else graph.get_attr(f"{node.target}.bias")
            options = ((1, *conv.stride), (0, *conv.padding), (1, *conv.dilation), conv.groups)
            result = graph.call_function(F.conv2d, (image, kernel, bias, *options))
            flat = graph.call_method("squeeze", (result, height))
            # an input that looks channels-last gives an image in that layout
            flat = graph.call_method("clone", (flat,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(flat)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    27,
    wrong="It inserts the height as dimension 2, counted from the front, which is wrong for an input without a batch.",
)
def conv1d_to_conv2d_twentyseventh(gm):
    """Conv1d becomes a conv2d over images of height 1, for an accelerator that has only those."""
    return _convert(gm, 2)
