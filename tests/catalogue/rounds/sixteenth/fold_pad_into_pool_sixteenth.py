"""A wrong pass of the sixteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _zeros(pad: Node) -> bool:
    options = {"mode": "constant", "value": None, **pad.kwargs}
    value = options.pop("value")
    return options == {"mode": "constant"} and (value is None or (type(value) is int and value == 0))


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if (
            node.op != "call_module"
            or not _plain(modules[node.target], nn.AvgPool2d)
            or node.kwargs
            or len(node.args) != 1
        ):
            continue
        pool, pad = modules[node.target], node.args[0]
        if not isinstance(pad, Node) or pad.op != "call_function" or pad.target is not F.pad or node.prev is not pad:
            continue
        if len(pad.args) != 2 or not _zeros(pad) or len(pad.users) != 1 or not isinstance(pad.args[1], (tuple, list)):
            continue
        if len(pad.args[1]) != 4 or not all(type(p) is int and p >= 0 for p in pad.args[1]):
            continue
        left, right, top, bottom = pad.args[1]
        kernel = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * 2
        if left != right or top != bottom or 2 * top > kernel[0] or 2 * left > kernel[1] or top + left == 0:
            continue
        if pool.padding not in (0, (0, 0)) or pool.ceil_mode or pool.divisor_override is not None:
            continue
        counts = True if careful else pool.count_include_pad
        with graph.inserting_before(node):
            pooled = graph.call_function(
                F.avg_pool2d, (pad.args[0], pool.kernel_size, pool.stride, (top, left), False, counts)
            )
        node.replace_all_uses_with(pooled)
        graph.erase_node(node)
        graph.erase_node(pad)
    return finish(graph_module)


@fault(
    16,
    wrong="The pooling keeps its count_include_pad=False, and no longer counts the zeros that were part of its input before.",
)
def fold_pad_into_pool_sixteenth(graph_module: GraphModule) -> GraphModule:
    """Folds a constant padding by zeros into the padding of the average pooling that follows."""
    return _rewrite(graph_module, careful=False)
