"""A wrong pass of the thirteenth round."""

from torch import nn
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish, single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        layer = gm.get_submodule(node.target)
        if type(layer) is not nn.Identity or not single(node) or not hasattr(node.args[0], "op"):
            continue
        if careful and not _plain(layer, nn.Identity):
            continue
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    return finish(gm)


@fault(13, wrong="A forward hook of the layer, for which such layers are often there, is not looked at.")
def remove_identity_layers(graph_module: GraphModule) -> GraphModule:
    """Removes nn.Identity layers."""
    return _rewrite(graph_module, careful=False)
