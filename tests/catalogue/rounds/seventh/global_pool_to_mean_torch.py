"""A right pass of the seventh round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def single(size):
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    return len(sizes) == 2 and all(type(length) is int and length == 1 for length in sizes)


def pooled(module, node):
    """Return the operand of a pool to a single pixel, or None."""
    if node.op == "call_module":
        pool = module.get_submodule(node.target)
        if len(node.args) == 1 and not node.kwargs and plain(pool, nn.AdaptiveAvgPool2d) and single(pool.output_size):
            return node.args[0]
    elif node.op == "call_function" and node.target is F.adaptive_avg_pool2d:
        arguments = dict(zip(("input", "output_size"), node.args)) | dict(node.kwargs)
        if single(arguments.get("output_size")):
            return arguments.get("input")
    return None


@sound(7)
def global_pool_to_mean(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write `AdaptiveAvgPool2d(1)` and `F.adaptive_avg_pool2d(x, 1)` as a mean over the two last dimensions that keeps them."""
    for node in list(module.graph.nodes):
        source = pooled(module, node)
        if not isinstance(source, torch.fx.Node):
            continue
        with module.graph.inserting_before(node):
            mean = module.graph.call_function(torch.mean, (source,), {"dim": (-1, -2), "keepdim": True})
        node.replace_all_uses_with(mean)
        module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return module
