"""A wrong pass of the twentyeighth round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import plain, writes


def siblings(gm):
    nodes_of_key = {}
    for node in gm.graph.nodes:
        if plain(gm, node, torch.nn.Linear):
            layer = gm.get_submodule(node.target)
            nodes_of_key.setdefault((node.args[0], layer.bias is None, layer.weight.dtype), []).append(node)
    return [nodes for nodes in nodes_of_key.values() if len(nodes) > 1]


def fuse(gm, dense):
    if writes(gm):
        return gm
    graph = gm.graph
    for nodes in siblings(gm):
        layers = [gm.get_submodule(node.target) for node in nodes]
        with graph.inserting_before(nodes[0]):
            weight = graph.call_function(torch.cat, ([graph.get_attr(f"{node.target}.weight") for node in nodes],))
            bias = None
            if layers[0].bias is not None:
                bias = graph.call_function(torch.cat, ([graph.get_attr(f"{node.target}.bias") for node in nodes],))
            product = graph.call_function(F.linear, (nodes[0].args[0], weight, bias))
            sizes = [layer.out_features for layer in layers]
            pieces = graph.call_function(torch.split, (product, sizes), {"dim": -1})
            for number, node in enumerate(nodes):
                piece = graph.call_function(operator.getitem, (pieces, number))
                if dense:
                    piece = graph.call_method("clone", (piece,), {"memory_format": torch.contiguous_format})
                node.replace_all_uses_with(piece)
        for node in nodes:
            graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Hands on the pieces of the split as they are: views with the rows of the large product, which view(-1) refuses.",
)
def fuse_sibling_linears(gm: torch.fx.GraphModule):
    """Fuses the linear layers that read one tensor (query, key, value) into one larger product and a split."""
    return fuse(gm, dense=False)
