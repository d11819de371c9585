"""A wrong pass of the eighth round."""

from torch.fx import GraphModule

from ...rows import fault


def _stateless(layer):
    if not type(layer).__module__.startswith("torch.nn.modules.") or "forward" in vars(layer):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return not (hooked or layer._parameters or layer._buffers or layer._modules)


def _share(module, kind_of):
    target_of_kind = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            if _stateless(layer):
                node.target = target_of_kind.setdefault(kind_of(layer), node.target)
    module.recompile()
    return module


@fault(
    8, wrong="Modules count as alike by their class; their settings (a slope, a dimension, a kernel) are not compared."
)
def share_stateless_modules(module: GraphModule) -> GraphModule:
    """Let calls of modules without parameters, buffers and submodules that are alike call the first of them."""
    return _share(module, type)
