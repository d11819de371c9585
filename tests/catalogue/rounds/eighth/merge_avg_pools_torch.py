"""A wrong pass of the eighth round."""

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _plain_pool(module, node):
    """Kernel and stride of an average pooling without padding and the like."""
    if not isinstance(node, Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    pool = module.get_submodule(node.target)
    if type(pool) is not nn.AvgPool2d or pool._forward_hooks or pool._forward_pre_hooks or "forward" in vars(pool):
        return None
    if _pair(pool.padding) != (0, 0) or pool.ceil_mode or pool.divisor_override is not None:
        return None
    return _pair(pool.kernel_size), _pair(pool.stride)


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        second = _plain_pool(module, node)
        first = second and _plain_pool(module, node.args[0])
        if not first:
            continue
        before = node.args[0]
        if len(before.users) != 1 or node.prev is not before or not accepts(*first):
            continue
        (kernel, stride), (outer, steps) = first, second
        size = tuple(k + (o - 1) * s for k, s, o in zip(kernel, stride, outer))
        name = f"{before.name}_{node.name}"
        while hasattr(module, name):
            name += "_"
        module.add_submodule(
            name, nn.AvgPool2d(size, tuple(s * t for s, t in zip(stride, steps))).train(module.training)
        )
        node.target, node.args = name, before.args
        graph.erase_node(before)
    module.recompile()
    return module


@fault(
    8,
    wrong="That the windows of the first pooling do not overlap (or leave gaps) is not asked; else its means do not weigh alike.",
)
def merge_avg_pools(module: GraphModule) -> GraphModule:
    """Make one average pooling of two that follow each other, which sees the same part of the image."""
    return _rewrite(module, lambda kernel, stride: True)
