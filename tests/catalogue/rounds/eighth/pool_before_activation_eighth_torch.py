"""A wrong pass of the eighth round."""

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault

_RISING = (nn.ReLU, nn.ReLU6)


_ACTIVATIONS = (*_RISING, nn.Hardswish)


def _own(layer):
    return not layer._forward_hooks and not layer._forward_pre_hooks and "forward" not in vars(layer)


def _rewrite(module, activations):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], Node):
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.args) != 1 or len(before.users) != 1 or node.prev is not before:
            continue
        pool, activation = module.get_submodule(node.target), module.get_submodule(before.target)
        if type(pool) is not nn.MaxPool2d or pool.return_indices or not _own(pool):
            continue
        if type(activation) not in activations or activation.inplace or not _own(activation):
            continue
        with graph.inserting_before(before):
            pooled = graph.call_module(node.target, before.args)
            result = graph.call_module(before.target, (pooled,))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(before)
    module.recompile()
    return module


@fault(
    8,
    wrong="Hardswish is among the activations, which falls before it rises: the largest input does not give the largest result.",
)
def pool_before_activation_eighth(module: GraphModule) -> GraphModule:
    """Exchange an activation and the max pooling behind it, which picks the same pixels."""
    return _rewrite(module, _ACTIVATIONS)
