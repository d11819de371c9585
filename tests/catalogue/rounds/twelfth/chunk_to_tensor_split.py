"""A wrong pass of the twelfth round."""

import torch
from torch import nn

import fx

from ...rows import fault


def _chunk(node):
    """The tensor, the number of parts and the dimension, or None."""
    if node.op not in ("call_method", "call_function") or node.target not in ("chunk", torch.chunk):
        return None
    arguments = dict(zip(("input", "chunks", "dim"), node.args)) | dict(node.kwargs)
    x, parts, dim = arguments.get("input"), arguments.get("chunks"), arguments.get("dim", 0)
    if not isinstance(x, fx.Node) or type(parts) is not int or type(dim) is not int:
        return None
    return x, parts, dim


def _divides(module, x, parts, dim):
    """Return whether the dimension is a linear layer's features, and divisible by the number of parts."""
    if x.op != "call_module" or dim != -1:
        return False
    layer = module.get_submodule(x.target)
    if type(layer) is not nn.Linear or layer._forward_hooks or "forward" in vars(layer):
        return False
    return layer.out_features % parts == 0


def _run(module, evenly):
    graph = module.graph
    for node in list(graph.nodes):
        chunk = _chunk(node)
        if chunk is None or (evenly and not _divides(module, *chunk)):
            continue
        x, parts, dim = chunk
        with graph.inserting_before(node):
            split = graph.call_function(torch.tensor_split, (x, parts), {"dim": dim})
        node.replace_all_uses_with(split)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    12,
    wrong="Whether the size divides evenly is not asked; chunk makes the last part smaller, tensor_split the first ones larger.",
)
def chunk_to_tensor_split(module: fx.GraphModule) -> fx.GraphModule:
    """Write chunk as tensor_split, the one form of splitting that the backend knows."""
    return _run(module, False)
