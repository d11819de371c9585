"""A wrong pass of the twentyfifth round."""

import torch

from ...rows import fault
from .shared import hooked


def flattens(gm, node):
    if node.op == "call_function" and node.target is torch.flatten:
        return node.args[1:] == (1,) and not node.kwargs
    module = gm.get_submodule(node.target) if node.op == "call_module" else None
    return type(module) is torch.nn.Flatten and (module.start_dim, module.end_dim) == (1, -1) and not hooked(module)


def lower(gm, build):
    for pool in list(gm.graph.find_nodes(op="call_module")):
        module = gm.get_submodule(pool.target)
        if type(module) is not torch.nn.AdaptiveAvgPool2d or module.output_size not in (1, (1, 1)) or hooked(module):
            continue
        if len(pool.args) != 1 or pool.kwargs or len(pool.users) != 1:
            continue
        (flat,) = pool.users
        if flattens(gm, flat):
            with gm.graph.inserting_before(pool):
                mean = build(gm.graph, pool.args[0])
            flat.replace_all_uses_with(mean)
            gm.graph.erase_node(flat)
            gm.graph.erase_node(pool)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="It takes the pooled tensor for a batch of images (4-D); one image without a batch (C, H, W) has no dim 3.",
)
def pool_to_mean(gm):
    """Lower global average pooling and the flatten behind it to one mean, for a backend without adaptive pooling."""
    return lower(gm, lambda graph, x: graph.call_method("mean", (x, (2, 3))))
