"""A right pass of the eighth round."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from ...rows import sound


def _is_one(size):
    """Return whether the result has one pixel: `None` keeps a size."""
    if isinstance(size, (tuple, list)):
        return len(size) == 2 and all(type(part) is int and part == 1 for part in size)
    return type(size) is int and size == 1


def _pools(module, node):
    if node.op == "call_module":
        pool = module.get_submodule(node.target)
        hooked = pool._forward_hooks or pool._forward_pre_hooks or pool._backward_hooks or pool._backward_pre_hooks
        if type(pool) is not nn.AdaptiveAvgPool2d or hooked or "forward" in vars(pool):
            return False
        return _is_one(pool.output_size) and len(node.args) == 1 and not node.kwargs
    if node.op == "call_function" and node.target is F.adaptive_avg_pool2d:
        arguments = dict(zip(("input", "output_size"), node.args), **node.kwargs)
        return set(arguments) == {"input", "output_size"} and _is_one(arguments["output_size"])
    return False


@sound(8)
def global_pool_to_mean_eighth(module: GraphModule) -> GraphModule:
    """Replace adaptive average pooling to a single pixel by a mean over both spatial dimensions."""
    graph = module.graph
    for node in list(graph.nodes):
        if not _pools(module, node):
            continue
        value = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_before(node):
            mean = graph.call_function(torch.mean, (value,), {"dim": (-2, -1), "keepdim": True})
        node.replace_all_uses_with(mean)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
