"""A wrong pass of the ninth round."""

from torch import nn

import fx

from ...rows import fault


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _layer(module, node, kinds):
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = module.get_submodule(node.target)
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return layer if type(layer) in kinds and not any(hooks) and "forward" not in layer.__dict__ else None


def _pool(module, node):
    layer = _layer(module, node, (nn.AvgPool2d,))
    if layer is None or _pair(layer.kernel_size) != _pair(layer.stride) or _pair(layer.padding) != (0, 0):
        return None
    return layer if layer.divisor_override is None else None


def _is_float(module, node):
    """Return whether the value comes from a layer with weights: integer means would be rounded after each pool."""
    while _layer(module, node, (nn.ReLU, nn.GELU, nn.SiLU)) is not None:
        node = node.args[0]
    return _layer(module, node, (nn.Conv2d, nn.BatchNorm2d)) is not None


def _run(module, right):
    graph = module.graph
    for outer in list(graph.nodes):
        second = _pool(module, outer)
        inner = outer.args[0] if second is not None else None
        first = _pool(module, inner)
        if first is None or list(inner.users) != [outer] or first.ceil_mode != second.ceil_mode:
            continue
        if not _is_float(module, inner.args[0]) or (right and first.ceil_mode):
            continue
        size = tuple(a * b for a, b in zip(_pair(first.kernel_size), _pair(second.kernel_size)))
        name = f"merged_{inner.name}_{outer.name}"
        module.add_module(name, nn.AvgPool2d(size, ceil_mode=first.ceil_mode).train(first.training))
        with graph.inserting_before(inner):
            new = graph.call_module(name, (inner.args[0],))
        outer.replace_all_uses_with(new)
        graph.erase_node(outer)
        graph.erase_node(inner)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Carries ceil_mode over to the merged pool, where the mean of a partial window is not the mean of the means.",
)
def merge_avg_pools_ninth(module: fx.GraphModule) -> fx.GraphModule:
    """Make one average pool of two without overlap that follow each other."""
    return _run(module, False)
