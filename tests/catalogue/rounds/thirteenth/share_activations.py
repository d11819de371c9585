"""A right pass of the thirteenth round."""

from torch import nn

from fx import GraphModule

from ...rows import sound


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _rewrite(gm: GraphModule) -> GraphModule:
    first = None
    for node in gm.graph.find_nodes(op="call_module"):
        layer = gm.get_submodule(node.target)
        if not _plain(layer, nn.ReLU) or layer.inplace:
            continue
        first = first or node.target
        node.target = first
    return _finish(gm)


@sound(13)
def share_activations(graph_module: GraphModule) -> GraphModule:
    """Lets all plain nn.ReLU layers of the program be one."""
    return _rewrite(graph_module)
