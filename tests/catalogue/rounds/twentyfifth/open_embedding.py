"""A wrong pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

from ...rows import fault
from .shared import hooked


def open_modules(gm, accepts):
    graph = gm.graph
    for node in list(graph.find_nodes(op="call_module")):
        module = gm.get_submodule(node.target)
        if type(module) is not torch.nn.Embedding or hooked(module) or not accepts(module):
            continue
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            continue
        ids = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_before(node):
            table = graph.get_attr(f"{node.target}.weight")
            rows = graph.call_function(F.embedding, (ids, table))
        node.replace_all_uses_with(rows)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(25, wrong="It leaves out padding_idx: the values are the same, but the row of the padding now gets a gradient.")
def open_embedding(gm):
    """Open nn.Embedding modules into F.embedding on their weights, so that later passes see the tables."""
    return open_modules(gm, lambda module: True)
