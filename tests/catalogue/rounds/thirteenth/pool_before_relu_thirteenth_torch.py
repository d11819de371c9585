"""A right pass of the thirteenth round."""

from torch import nn
from torch.fx import GraphModule

from ...rows import sound
from .shared import finish, single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _rewrite(gm: GraphModule) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        inner = node.prev
        if inner.op != "call_module" or not single(node) or not single(inner):
            continue
        if node.args[0] is not inner or len(inner.users) != 1:
            continue
        relu, pool = gm.get_submodule(inner.target), gm.get_submodule(node.target)
        if not _plain(relu, nn.ReLU) or not _plain(pool, nn.MaxPool2d) or relu.inplace:
            continue
        if pool.return_indices or pool.dilation not in (1, (1, 1)):
            continue
        inner.target, node.target = node.target, inner.target
    return finish(gm)


@sound(13)
def pool_before_relu_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Pools before the ReLU instead of after it, so that the ReLU sees fewer elements."""
    return _rewrite(graph_module)
