"""A wrong pass of the eighth round."""

import operator

import torch
from torch.fx import GraphModule

from ...rows import fault


def _attribute(module, path):
    prefix, _, name = path.rpartition(".")
    return getattr(module.get_submodule(prefix), name)


def _dim_and_index(key):
    if isinstance(key, torch.fx.Node):
        return 0, key
    if isinstance(key, tuple) and key and isinstance(key[-1], torch.fx.Node):
        if all(isinstance(part, slice) and part == slice(None) for part in key[:-1]):
            return len(key) - 1, key[-1]
    return None, None


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        dim, index = _dim_and_index(node.args[1])
        if index is None or index.op != "get_attr" or not isinstance(node.args[0], torch.fx.Node):
            continue
        fetches = [other for other in graph.nodes if other.op == "get_attr" and other.target == index.target]
        readers = {user.target for fetch in fetches for user in fetch.users}
        values = _attribute(module, index.target)
        if not readers <= {operator.getitem, torch.index_select} or not isinstance(values, torch.Tensor):
            continue
        if values.dtype not in (torch.int64, torch.int32) or values.dim() != 1 or not accepts(values):
            continue
        with graph.inserting_before(node):
            selected = graph.call_function(torch.index_select, (node.args[0], dim, index))
        node.replace_all_uses_with(selected)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    8, wrong="Negative entries of the index, which count from the end, are not asked for; index_select refuses them."
)
def index_to_index_select(module: GraphModule) -> GraphModule:
    """Replace indexing one dimension by a constant vector of integers by `torch.index_select`."""
    return _rewrite(module, lambda values: True)
