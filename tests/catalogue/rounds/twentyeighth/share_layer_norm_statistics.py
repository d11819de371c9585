"""A wrong pass of the twentyeighth round."""

import torch
import torch.nn.functional as F

from ...rows import fault
from .shared import plain, writes


def groups(gm, key):
    """The layer norms that may share statistics, by key."""
    nodes_of_key = {}
    for node in gm.graph.nodes:
        if plain(gm, node, torch.nn.LayerNorm):
            norm = gm.get_submodule(node.target)
            if norm.weight is not None:
                nodes_of_key.setdefault((node.args[0], key(norm)), []).append(node)
    return [nodes for nodes in nodes_of_key.values() if len(nodes) > 1]


def share(gm, key):
    if writes(gm):
        return gm
    graph = gm.graph
    for nodes in groups(gm, key):
        norm = gm.get_submodule(nodes[0].target)
        with graph.inserting_before(nodes[0]):
            args = (nodes[0].args[0], tuple(norm.normalized_shape), None, None, norm.eps)
            normal = graph.call_function(F.layer_norm, args)
        for node in nodes:
            with graph.inserting_before(node):
                scaled = graph.call_function(torch.mul, (normal, graph.get_attr(f"{node.target}.weight")))
                if gm.get_submodule(node.target).bias is not None:
                    scaled = graph.call_function(torch.add, (scaled, graph.get_attr(f"{node.target}.bias")))
                scaled = graph.call_method("type_as", (scaled, normal))
            node.replace_all_uses_with(scaled)
            graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28, wrong="Groups the norms by input and shape, not by eps, and normalizes all of them with the eps of the first."
)
def share_layer_norm_statistics(gm):
    """Normalizes once where several layer norms read the same tensor, as the parallel blocks of Falcon do."""
    return share(gm, lambda norm: tuple(norm.normalized_shape))
