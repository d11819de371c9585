"""A wrong pass of the seventeenth round."""

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import has_hooks, may_write


def _int(value) -> int:
    return value[0] if isinstance(value, (tuple, list)) else value


def _pool(graph_module: GraphModule, node):
    if not isinstance(node, Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = graph_module.get_submodule(node.target)
    if type(module) is not nn.MaxPool1d or has_hooks(module) or module.return_indices or module.ceil_mode:
        return None
    return module if _int(module.padding) == 0 and _int(module.dilation) == 1 else None


def _merge(graph_module: GraphModule, window) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _pool(graph_module, node)
        inner = _pool(graph_module, node.args[0]) if outer else None
        if not inner or len(node.args[0].users) > 1:
            continue
        source = node.args[0]
        size = window(_int(inner.kernel_size), _int(inner.stride), _int(outer.kernel_size))
        pool = nn.MaxPool1d(size, _int(inner.stride) * _int(outer.stride))
        name = f"merged_{source.name}_{node.name}"
        if hasattr(graph_module, name):
            continue
        graph_module.add_submodule(name, pool.train(graph_module.training))
        node.target, node.args = name, source.args
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="The merged window is the product of the two, which holds only where the first pool does not overlap.")
def merge_max_pools(graph_module: GraphModule) -> GraphModule:
    """Make one max pool of two in a row."""
    return _merge(graph_module, lambda first, stride, second: first * second)
